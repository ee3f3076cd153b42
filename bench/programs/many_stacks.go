// Allocates from many stacks, each a bucket of the heap profile, and parks many goroutines.
//
// Usage: many_stacks STACKS GOROUTINES. For each line on standard input it allocates a little and collects.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	_ "runtime/pprof"
	"strconv"
)

const depth = 20

var kept [][]byte

// The bits of path say which of the two functions calls which.
//
//go:noinline
func left(path, depth int) {
	if depth == 0 {
		kept = append(kept, make([]byte, 64))
	} else if path&1 == 0 {
		left(path>>1, depth-1)
	} else {
		right(path>>1, depth-1)
	}
}

//go:noinline
func right(path, depth int) {
	if depth == 0 {
		kept = append(kept, make([]byte, 96))
	} else if path&1 == 0 {
		left(path>>1, depth-1)
	} else {
		right(path>>1, depth-1)
	}
}

func collect() {
	runtime.GC()
	runtime.GC()
	fmt.Println("done")
}

func main() {
	// Every block is sampled.
	runtime.MemProfileRate = 1
	stacks, _ := strconv.Atoi(os.Args[1])
	goroutines, _ := strconv.Atoi(os.Args[2])
	for path := 0; path < stacks; path++ {
		left(path, depth)
	}
	never := make(chan int)
	for i := 0; i < goroutines; i++ {
		go func() { <-never }()
	}
	collect()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		for path := 0; path < 1000 && path < stacks; path++ {
			left(path, depth)
		}
		collect()
	}
}
