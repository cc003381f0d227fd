//go:build !unix

package paceline

import "os"

func isRoots(os.FileInfo) bool { return false }
