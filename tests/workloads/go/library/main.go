// A library for programs in other languages (-buildmode=c-shared), which keeps memory of Go and of C.
package main

/*
#include <stdlib.h>

static void *keepOne(size_t bytes) { return malloc(bytes); }
*/
import "C"

import (
	"os"
	"runtime"
	"runtime/pprof"
)

var kept [][]byte

//go:noinline
func remember(count, bytes int) {
	for i := 0; i < count; i++ {
		kept = append(kept, make([]byte, bytes))
	}
}

//export KeepGo
func KeepGo(count, bytes C.int) {
	remember(int(count), int(bytes))
}

//export KeepC
func KeepC(count, bytes C.int) {
	for i := 0; i < int(count); i++ {
		C.keepOne(C.size_t(bytes))
	}
}

//export Collect
func Collect() {
	runtime.GC()
	runtime.GC()
}

// Profile writes the heap profile as text into a file.
//
//export Profile
func Profile(path *C.char) {
	file, err := os.Create(C.GoString(path))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if err := pprof.Lookup("heap").WriteTo(file, 1); err != nil {
		panic(err)
	}
}

func main() {}
