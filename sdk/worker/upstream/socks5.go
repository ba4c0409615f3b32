package upstream

import (
	"errors"
	"fmt"
	"io"
	"net"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Numbers of RFC 1928 and RFC 1929.
const (
	socksVersion     = 5
	noAuthentication = 0
	byPassword       = 2
	noneAcceptable   = 0xff
	passwordVersion  = 1
	commandConnect   = 1
	addressIPv4      = 1
	addressName      = 3
	addressIPv6      = 4
)

var socksReplies = [...]string{"succeeded", "general failure", "not allowed by its rules", "network unreachable", "host unreachable",
	"connection refused", "TTL expired", "command not supported", "address type not supported"}

// socks5 asks a SOCKS5 proxy for a tunnel. Every answer has a length that is known
// beforehand, and not a byte more is read.
func socks5(conn net.Conn, p Proxy, to target.Target) error {
	login := p.Username != "" || p.Password != ""
	hello := []byte{socksVersion, 1, noAuthentication}
	if login {
		hello = []byte{socksVersion, 2, noAuthentication, byPassword}
	}
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var answer [4]byte
	if err := read(conn, answer[:2], "no answer to its greeting"); err != nil {
		return err
	}
	if answer[0] != socksVersion {
		return protocolError("the answer to the greeting begins with %#02x, which is not SOCKS5", answer[0])
	}
	switch method := answer[1]; {
	case method == noAuthentication:
	case method == byPassword && login:
		if err := logIn(conn, p); err != nil {
			return err
		}
	case method == noneAcceptable && login:
		return &Error{Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH, Err: errors.New("the proxy takes neither a password nor nobody")}
	case method == noneAcceptable:
		return &Error{Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH, Err: errors.New("the proxy wants credentials, and there are none")}
	default:
		return protocolError("the proxy chose authentication method %d, which was not offered", method)
	}
	if _, err := conn.Write(socksRequest(to)); err != nil {
		return err
	}
	if err := read(conn, answer[:4], "no answer to CONNECT"); err != nil {
		return err
	}
	if answer[0] != socksVersion {
		return protocolError("the answer to CONNECT begins with %#02x, which is not SOCKS5", answer[0])
	}
	if reply := answer[1]; reply != 0 {
		text := "unknown"
		if int(reply) < len(socksReplies) {
			text = socksReplies[reply]
		}
		return &Error{
			Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROXY_STATUS, Status: int(reply),
			Target: reply == 1 || reply >= 3 && reply <= 6, Err: fmt.Errorf("the proxy answers CONNECT with reply %d (%s)", reply, text),
		}
	}
	return skipBound(conn, answer[3])
}

func logIn(conn net.Conn, p Proxy) error {
	if err := p.checkCredentials(); err != nil {
		return &Error{Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH, Local: true, Err: err}
	}
	m := append([]byte{passwordVersion, byte(len(p.Username))}, p.Username...)
	m = append(append(m, byte(len(p.Password))), p.Password...)
	if _, err := conn.Write(m); err != nil {
		return err
	}
	var answer [2]byte
	if err := read(conn, answer[:], "no answer to the credentials"); err != nil {
		return err
	}
	// Some servers put the protocol's version where RFC 1929 has the subnegotiation's.
	if answer[0] != passwordVersion && answer[0] != socksVersion {
		return protocolError("the answer to the credentials begins with %#02x, which is not RFC 1929", answer[0])
	}
	if answer[1] != 0 {
		return &Error{Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH, Err: errors.New("the proxy does not take these credentials")}
	}
	return nil
}

func socksRequest(to target.Target) []byte {
	m := []byte{socksVersion, commandConnect, 0}
	switch {
	case to.Addr.Is4():
		v4 := to.Addr.As4()
		m = append(append(m, addressIPv4), v4[:]...)
	case to.Addr.IsValid():
		v6 := to.Addr.As16()
		m = append(append(m, addressIPv6), v6[:]...)
	default: // at most target.MaxName bytes
		m = append(append(m, addressName, byte(len(to.Name))), to.Name...)
	}
	return append(m, byte(to.Port>>8), byte(to.Port))
}

// skipBound reads over the address that the proxy dials from.
func skipBound(conn net.Conn, kind byte) error {
	var buf [256 + 2]byte
	length := 0
	switch kind {
	case addressIPv4:
		length = 4
	case addressIPv6:
		length = 16
	case addressName:
		if err := read(conn, buf[:1], "no end of the answer to CONNECT"); err != nil {
			return err
		}
		length = int(buf[0])
	default:
		return protocolError("the answer to CONNECT has address type %d, which SOCKS5 does not have", kind)
	}
	return read(conn, buf[:length+2], "no end of the answer to CONNECT")
}

func read(conn net.Conn, p []byte, what string) error {
	if _, err := io.ReadFull(conn, p); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
