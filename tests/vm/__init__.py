"""The host tests on other kernels: Debian's, under QEMU. `make test-kernels`; tests/README.md tells how."""
