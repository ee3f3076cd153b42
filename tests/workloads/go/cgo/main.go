// A program that leaks by C, from goroutines whose stacks move, with calls from C back into Go.
package main

/*
#include <stdlib.h>
#include <string.h>

extern void fromC(int depth);

static void *leak(size_t bytes) {
	void *block = malloc(bytes);
	memset(block, 1, bytes);
	return block;
}

static void churn0(void) { free(malloc(50)); }

static void churn(int depth) {
	void *block = malloc(100);
	fromC(depth);
	free(block);
}
*/
import "C"

import (
	"fmt"
	_ "net/http/pprof"
	"runtime"
	"time"
)

//export fromC
func fromC(depth C.int) {
	grow(int(depth))
}

// Needs a larger stack each time: the goroutine's is copied.
//
//go:noinline
func grow(depth int) byte {
	var room [1024]byte
	if depth > 0 {
		room[depth%1024] = grow(depth - 1)
	} else {
		C.churn0()
	}
	return room[0]
}

//go:noinline
func rememberC() {
	C.leak(4096)
}

func main() {
	fmt.Println("ready")
	for i := 0; ; i++ {
		rememberC()
		done := make(chan bool)
		go func() {
			C.churn(C.int(i % 64))
			done <- true
		}()
		<-done
		if i%100 == 0 {
			runtime.GC()
		}
		time.Sleep(time.Millisecond)
	}
}
