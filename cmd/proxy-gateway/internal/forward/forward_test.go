package forward_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// curl gets pages through the gateway, with and without TLS, through each kind of proxy.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	plain := origin(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "plain "+r.Method+" "+r.Host+r.URL.Path)
	})
	secured := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, "secured "+r.Method+" "+r.Host+r.URL.Path+" "+string(sent))
	}))
	defer secured.Close()
	hosts := map[string]string{"shop.example:80": plain, "shop.example:443": strings.TrimPrefix(secured.URL, "https://")}
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Username: "user", Password: "secret", Hosts: hosts})
		g := start(t, trust(p), through(t, p))
		for _, c := range []struct {
			want string
			args []string
		}{
			{"plain GET shop.example/a", []string{"http://shop.example/a"}},
			{"secured GET shop.example/b ", []string{"https://shop.example/b"}},
			{"secured POST shop.example/c sent", []string{"-d", "sent", "https://shop.example/c"}},
			{"plain GET shop.example/dplain GET shop.example/e", []string{"http://shop.example/d", "http://shop.example/e"}},
			{"plain GET shop.example/f", []string{"-p", "http://shop.example/f"}},
		} {
			out, err := exec.CommandContext(t.Context(), curl, append([]string{"-sSk", "--max-time", "30", "-x", "http://" + g.address}, c.args...)...).CombinedOutput()
			if err != nil || string(out) != c.want {
				t.Errorf("%v %v: %q, %v, want %q", protocol, c.args, out, err, c.want)
			}
		}
	}
}

func TestTunnelBytes(t *testing.T) {
	at := echo(t)
	for _, protocol := range protocols {
		for _, early := range []string{"", "server first "} {
			p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"shop.example:443": at, "[2001:db8::1]:443": at}, Early: early})
			g := start(t, trust(p), through(t, p))
			for _, to := range []string{"shop.example:443", "[2001:db8::1]:443"} {
				conn := g.dial()
				r := bufio.NewReader(conn)
				// What comes with the CONNECT is the tunnel's.
				answer := talk(t, conn, r, http.MethodConnect, "CONNECT "+to+" HTTP/1.1\r\nHost: "+to+"\r\n\r\nfirst ")
				if answer.status != 200 {
					t.Fatalf("%v %s: %v", protocol, to, answer)
				}
				if _, err := io.WriteString(conn, "second "); err != nil {
					t.Fatal(err)
				}
				if err := conn.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r)
				if want := early + "first second bye"; err != nil || string(got) != want {
					t.Errorf("%v %s: %q, %v, want %q", protocol, to, got, err, want)
				}
			}
		}
	}
}
