// A program that loads a plugin of Go code and lets it allocate: "load PATH", "keep N B", "collect".
package main

import (
	"bufio"
	"fmt"
	"os"
	"plugin"
	"runtime"
)

func main() {
	fmt.Println("ready")
	var keep func(count, bytes int)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var word, path string
		var count, bytes int
		fmt.Sscan(lines.Text(), &word)
		switch word {
		case "load":
			fmt.Sscan(lines.Text(), &word, &path)
			loaded, err := plugin.Open(path)
			if err != nil {
				panic(err)
			}
			found, err := loaded.Lookup("Keep")
			if err != nil {
				panic(err)
			}
			keep = found.(func(int, int))
		case "keep":
			fmt.Sscan(lines.Text(), &word, &count, &bytes)
			keep(count, bytes)
		case "collect":
			runtime.GC()
			runtime.GC()
			// Where it is called, the linker leaves the heap profile on.
			runtime.MemProfile(nil, true)
		}
		fmt.Println("ok")
	}
}
