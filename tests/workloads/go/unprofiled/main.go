// A program without pprof: the linker turns the runtime's heap profile off. It keeps 64 KiB every 10 ms.
package main

import (
	"fmt"
	"time"
)

var kept [][]byte

//go:noinline
func remember() {
	kept = append(kept, make([]byte, 64<<10))
}

func main() {
	fmt.Println("ready")
	for {
		remember()
		time.Sleep(10 * time.Millisecond)
	}
}
