//go:build unix

package paceline

import (
	"os"
	"syscall"
)

// isRoots tells whether the file belongs to root.
func isRoots(status os.FileInfo) bool {
	found, ok := status.Sys().(*syscall.Stat_t)
	return ok && found.Uid == 0
}
