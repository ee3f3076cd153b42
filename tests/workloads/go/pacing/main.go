// A program that keeps memory and makes garbage, and changes how its runtime collects and samples.
//
// It prints "ready", then obeys lines:
//   keep N B     keeps N more blocks of B bytes;      garbage N B   drops them
//   percent N    sets GOGC;      limit N   sets GOMEMLIMIT, in bytes
//   rate N       sets runtime.MemProfileRate;         collect       collects twice
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// With room for all, so that keeping a block allocates nothing else.
var kept = make([][]byte, 0, 1<<16)
var last []byte

//go:noinline
func keep(count, bytes int) {
	for i := 0; i < count; i++ {
		kept = append(kept, make([]byte, bytes))
	}
}

//go:noinline
func garbage(count, bytes int) {
	for i := 0; i < count; i++ {
		last = make([]byte, bytes)
		for j := 0; j < bytes; j += 4096 {
			last[j] = 1
		}
	}
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var word string
		var one, two int
		fmt.Sscan(lines.Text(), &word, &one, &two)
		switch word {
		case "keep":
			keep(one, two)
		case "garbage":
			garbage(one, two)
		case "percent":
			debug.SetGCPercent(one)
		case "limit":
			debug.SetMemoryLimit(int64(one))
		case "rate":
			runtime.MemProfileRate = one
		case "collect":
			runtime.GC()
			runtime.GC()
			// Where it is called, the linker leaves the heap profile on.
			runtime.MemProfile(nil, true)
		}
		fmt.Println("ok")
	}
}
