"""Pods as runtime hooks see them: what a pod asks for, where its cgroups are, and what the node offers."""
