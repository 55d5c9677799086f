// SPDX-License-Identifier: Apache-2.0

//go:build tools

// What is built here: containerd and its shim, by their own main packages.
package programs

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
)
