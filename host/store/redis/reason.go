package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

// fault is what an error of the server's means to us.
type fault struct {
	prefix string // of the server's error
	is     error  // one of the store's
	means  string
	look   bool // the server itself is to be looked at again
	wait   bool // a commit waits a little for it to pass
}

// faults are the server's errors that have a meaning of their own.
var faults = []fault{
	{"LOADING", store.ErrUnavailable, "the server is loading its data; wait", true, true},
	{"BUSY ", store.ErrUnavailable, "the server is busy with somebody's script; wait, or end it with SCRIPT KILL", false, true},
	{"MISCONF", store.ErrFull, "the server cannot write to its disk and takes no writes; give it space and see its log", false, false},
	{"OOM", store.ErrFull, "the server has no memory left and takes no writes; raise its maxmemory", false, false},
	{"NOAUTH", store.ErrUnavailable, "the server wants a password; name a file with it with store.redis.password_file", true, false},
	{"WRONGPASS", store.ErrUnavailable, "the server does not know this user with this password; see the user in store and the file that store.redis.password_file names", true, false},
	{"NOPERM", store.ErrUnavailable, "the server's ACL keeps a command or key of ours from our user; docs/operations.md lists what it needs", false, false},
	{"READONLY", store.ErrUnavailable, "the server has become a replica; the new master is looked for", true, true},
	{"MASTERDOWN", store.ErrUnavailable, "the server is a replica without a master; the new master is looked for", true, true},
	{"NOREPLICAS", store.ErrUnavailable, "the server wants more replicas before it takes a write; leave its min-replicas-to-write at 0", false, false},
	{"WRONGTYPE", store.ErrForeign, "a key of ours has another type, so another program writes it; see which keys begin with our tag", false, false},
	{"LOGAHEAD", store.ErrForeign, "a log of ours has entries that its head does not count, so another program has changed our keys", false, false},
	{"CLUSTERDOWN", store.ErrUnavailable, "the Cluster is down or does not serve our slot; wait for its fail-over", true, true},
	{"MOVED", store.ErrUnavailable, "our slot has moved; its new master is looked for", true, true},
	{"ASK", store.ErrUnavailable, "our slot is moving; wait", true, true},
	{"TRYAGAIN", store.ErrUnavailable, "our slot is moving; wait", true, true},
	{"UNBLOCKED", store.ErrUnavailable, "the server has become a replica while it was waited for; the new master is looked for", true, true},
	{"ERR DB index is out of range", store.ErrUnavailable, "the server has no such database; see the number at the end of store, and its setting databases", true, false},
	{"ERR SELECT is not allowed in cluster mode", store.ErrUnavailable, "a Cluster has only database 0; use redis+cluster:// in store", true, false},
	{"ERR max number of clients reached", store.ErrUnavailable, "the server has as many clients as its maxclients allows", true, false},
	{"ERR unknown command", store.ErrUnavailable, "the server lacks a command that we need; at least Redis 6.2 is needed, and no command renamed", false, false},
	{"ERR This instance has cluster support disabled", store.ErrUnavailable, "the server is not a node of a Cluster; use redis:// in store", true, false},
}

// explain turns the error of a call into one of the store's, with what it means
// and what to do. What nobody foresaw is unavailable with its text; the store's own
// errors pass as they are.
func explain(err error) error {
	for _, own := range []error{store.ErrUnavailable, store.ErrForeign, store.ErrRefused, store.ErrFull, store.ErrClosed, store.ErrUnknown} {
		if errors.Is(err, own) {
			return err
		}
	}
	if f, ok := faultOf(err); ok {
		return fmt.Errorf("%w: %s (%w)", f.is, f.means, err)
	}
	var netErr net.Error
	if text := tlsTrouble(err); text != "" {
		return fmt.Errorf("%w: %s (%w)", store.ErrUnavailable, text, err)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nobody listens at the server's address; start the server (%w)", store.ErrUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return fmt.Errorf("%w: the server does not answer in time (%w)", store.ErrUnavailable, err)
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return fmt.Errorf("%w: too many calls to the server are under way (%w)", store.ErrUnavailable, err)
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: the server has changed; try again", store.ErrUnavailable)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: the server has closed the connection (%w)", store.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// tlsTrouble says what is wrong with the server's side of TLS, "" when it is not
// that.
func tlsTrouble(err error) string {
	var cert *tls.CertificateVerificationError
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &cert):
		return "the server's certificate does not hold; see store.redis.ca_file and store.redis.server_name"
	case errors.As(err, &header):
		return "the server does not speak TLS; use redis:// in store, or the server's TLS port"
	}
	return ""
}

// helps reports whether waiting a little may cure a call's error.
func helps(err error) bool {
	f, ok := faultOf(err)
	return (!ok || f.wait) && tlsTrouble(err) == ""
}

// faultOf finds the fault of an error that the server has sent. An error of a
// command inside a script, or of the beginning of a connection, has it further in.
func faultOf(err error) (fault, bool) {
	if errors.Is(err, redis.Nil) {
		return fault{}, false
	}
	text := serverText(err)
	if text == "" {
		return fault{}, false
	}
	for _, f := range faults {
		if strings.HasPrefix(text, f.prefix) {
			return f, true
		}
	}
	for _, f := range faults {
		if strings.Contains(text, " "+f.prefix) || strings.Contains(text, "-"+f.prefix) {
			return f, true
		}
	}
	return fault{}, false
}

// serverText is the text of the server's own error, "" when the error did not come
// from the server.
func serverText(err error) string {
	var answered redis.Error
	if errors.As(err, &answered) {
		return answered.Error()
	}
	return ""
}

// answered reports whether the server has answered a call with an error, so that
// it is known not to have done it.
func answered(err error) bool { return serverText(err) != "" }

// unsent reports whether a call has certainly not reached the server.
func unsent(err error) bool {
	var dial *dialError
	var secret *secretError
	return errors.Is(err, errMoved) || errors.As(err, &secret) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		errors.Is(err, redis.ErrClosed) || errors.As(err, &dial)
}
