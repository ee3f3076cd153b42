// A plugin (-buildmode=plugin), which keeps memory.
package main

var kept [][]byte

//go:noinline
func remember(count, bytes int) {
	for i := 0; i < count; i++ {
		kept = append(kept, make([]byte, bytes))
	}
}

// Keep keeps so many blocks more.
func Keep(count, bytes int) {
	remember(count, bytes)
}

func main() {}
