// A service that serves its own heap profile, leaks on request, and says what it did.
//
// It prints its address, then obeys requests:
//   /remember?count=N&bytes=B  keeps N more blocks of B bytes;   /forget  lets go of all of them
//   /park?count=N              starts N goroutines that wait for ever;   /collect  collects twice
package main

import (
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof"
	"runtime"
	"strconv"
	"strings"
)

type order struct {
	next *order
	text []byte
}

type store struct {
	first *order
	lines []string
}

var orders store

func number(request *http.Request, name string, otherwise int) int {
	if found, err := strconv.Atoi(request.FormValue(name)); err == nil {
		return found
	}
	return otherwise
}

// Small enough to be inlined.
func newOrder(next *order, bytes int) *order {
	return &order{next, make([]byte, bytes)}
}

//go:noinline
func (s *store) remember(count, bytes int) {
	for i := 0; i < count; i++ {
		s.first = newOrder(s.first, bytes)
	}
}

//go:noinline
func keepText[T any](into *[]string, value T, bytes int) {
	var text strings.Builder
	fmt.Fprint(&text, value)
	text.Grow(bytes)
	*into = append(*into, text.String())
}

//go:noinline
func serveOne(requests chan int) {
	<-requests
}

//go:noinline
func park(count int) {
	for i := 0; i < count; i++ {
		go serveOne(make(chan int))
	}
}

func main() {
	runtime.MemProfileRate = rate
	http.HandleFunc("/remember", func(answer http.ResponseWriter, request *http.Request) {
		count, bytes := number(request, "count", 1), number(request, "bytes", 4096)
		orders.remember(count, bytes)
		keepText(&orders.lines, count, bytes)
		fmt.Fprintln(answer, "ok")
	})
	http.HandleFunc("/forget", func(answer http.ResponseWriter, request *http.Request) {
		orders = store{}
		fmt.Fprintln(answer, "ok")
	})
	http.HandleFunc("/park", func(answer http.ResponseWriter, request *http.Request) {
		park(number(request, "count", 1))
		fmt.Fprintln(answer, runtime.NumGoroutine())
	})
	http.HandleFunc("/collect", func(answer http.ResponseWriter, request *http.Request) {
		runtime.GC()
		runtime.GC()
		fmt.Fprintln(answer, "ok")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	panic(http.Serve(listener, nil))
}
