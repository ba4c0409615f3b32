// Package loopback finds ports of this machine that stay free for who is to listen
// there: a program that is started a moment later, is killed, and comes back to the
// same address. The tests and dona demo use it.
//
// To listen on port 0, close, and hand the number on is not enough: the kernel gives
// the same port to the next client that connects, and two processes that look at once
// find the same one.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
)

// The ports lie below those that kernels give to clients, and above those that are
// well known. The first port of each block is listened on by the process whose block
// it is, until that ends: no other process that asks here hands out the block's ports.
const (
	first     = 12_000
	blockSize = 32
	blocks    = 560
)

var (
	mu    sync.Mutex
	next  int // port to look at
	end   int // of the block; 0 = there is none yet
	tried int // blocks
	held  []net.Listener
)

// Free returns an address, 127.0.0.1 and a port, where nobody listens, and that is
// returned to nobody else on this machine as long as this process lives. Safe for
// concurrent use.
func Free() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	for {
		for next < end {
			address := fmt.Sprintf("127.0.0.1:%d", next)
			next++
			if l, err := net.Listen("tcp", address); err == nil {
				return address, l.Close()
			}
		}
		if err := takeBlock(); err != nil {
			return "", err
		}
	}
}

// takeBlock takes the next block that is nobody's. Processes begin at different ones.
func takeBlock() error {
	for ; tried < blocks; tried++ {
		from := first + (os.Getpid()*7+tried)%blocks*blockSize
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", from)); err == nil {
			tried++
			held = append(held, l)
			next, end = from+1, from+blockSize
			return nil
		}
	}
	return errors.New("loopback: every block of ports is taken")
}
