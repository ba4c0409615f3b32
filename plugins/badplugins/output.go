package badplugins

import (
	"bytes"
	"fmt"
	"os"
)

// writeBombs writes log lines whose fields have types that a careless reader
// does not expect, and some that pretend to be the host's.
func writeBombs() {
	for _, line := range []string{
		`{"@level":17,"@message":{"a":[1]},"@timestamp":false,"x":null}`,
		`{"@level":"info","@message":7,"@timestamp":"2026-01-01T00:00:00.000000Z"}`,
		`{"@level":["error"],"@message":"level is a list"}`,
		`{"@level":"info","@message":"timestamp is a number","@timestamp":1e400}`,
		`{"@level":"info","@message":"timestamp is an object","@timestamp":{}}`,
		`{"@level":"error","@message":"forged","@timestamp":"1970-01-01T00:00:00.000000Z","@module":"host","plugin":"somebody-else","pid":1}`,
		`{"@level":"info","@message":"two\nlines"}`,
		`{"@message":`,
		`[]`, `null`, `{}`,
		"\x1b[2J\x1b]0;title\x07clear the screen",
		"no text \xff\xfe\x80",
	} {
		write(2, []byte(line+"\n"))
	}
}

// floodStderr writes mib MiB of lines and some binary to stderr.
func floodStderr(mib int) {
	line := append(bytes.Repeat([]byte("flood "), 20), '\n')
	block := bytes.Repeat(line, (1<<20)/len(line))
	for range mib {
		write(2, block)
	}
	write(2, append(bytes.Repeat([]byte("z"), 1<<20), '\n'))
	binary := make([]byte, 64<<10)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	write(2, append(binary, '\n'))
}

// printStdout prints mib MiB through os.Stdout. With go-plugin alone that is the
// stream to the host, with the SDK it is stderr.
func printStdout(mib int) {
	fmt.Println("printed after Serve")
	block := append(bytes.Repeat([]byte("p"), 1<<10), '\n')
	for range mib << 10 {
		_, _ = os.Stdout.Write(block)
	}
	fmt.Println("printed at the end")
}
