"""The main job on the running kernel, as a story: a node cgroup, pods in it, a hog, and the real agent on top."""
