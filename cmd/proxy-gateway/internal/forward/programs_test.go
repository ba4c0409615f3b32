package forward_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// program runs a program, and skips where there is none.
func program(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("there is no %s", name)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.String())
	}
	return string(out)
}

// git clones over https through each kind of proxy.
func TestGit(t *testing.T) {
	home := t.TempDir()
	env := []string{
		"HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_TERMINAL_PROMPT=0",
	}
	repo := filepath.Join(home, "repo")
	program(t, env, "git", "init", "-q", repo)
	if err := os.WriteFile(filepath.Join(repo, "file"), bytes.Repeat([]byte("content\n"), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	program(t, env, "git", "-C", repo, "add", "file")
	program(t, env, "git", "-C", repo, "commit", "-q", "-m", "first")
	program(t, env, "git", "-C", repo, "update-server-info")
	served := httptest.NewTLSServer(http.FileServer(http.Dir(home)))
	defer served.Close()
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"code.example:443": strings.TrimPrefix(served.URL, "https://")}})
		g := start(t, trust(p), through(t, p))
		to := filepath.Join(home, protocol.String())
		program(t, env, "git", "-c", "http.sslVerify=false", "-c", "http.proxy=http://"+g.address, "clone", "-q", "https://code.example/repo/.git", to)
		if got, err := os.ReadFile(filepath.Join(to, "file")); err != nil || len(got) != 80_000 {
			t.Errorf("%v: %d bytes arrived, %v", protocol, len(got), err)
		}
	}
}

// Node's own client sends requests in absolute form, and TLS through CONNECT.
func TestNode(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Method+" "+r.Host+" "+string(sent)+"\n")
	})
	secured := httptest.NewTLSServer(hello)
	defer secured.Close()
	hosts := map[string]string{"shop.example:80": origin(t, hello), "shop.example:443": strings.TrimPrefix(secured.URL, "https://")}
	script := `const http = require("http"), tls = require("tls"), [host, port] = process.argv[1].split(":");
const agent = new http.Agent({keepAlive: true});
const ask = (how, body) => new Promise((done, fail) => {
	const q = http.request({...how, method: body ? "POST" : "GET", headers: {Host: "shop.example"}}, r => {
		let text = "";
		r.on("data", d => text += d).on("end", () => { process.stdout.write(r.statusCode + " " + text); done(); });
	});
	q.on("error", fail).end(body);
});
(async () => {
	for (const body of [undefined, "sent"]) await ask({host, port, agent, path: "http://shop.example/"}, body);
	for (const body of [undefined, "sent"]) {
		const socket = await new Promise((done, fail) => http.request({host, port, method: "CONNECT", path: "shop.example:443"})
			.on("connect", (r, s) => r.statusCode == 200 ? done(s) : fail(r.statusCode)).on("error", fail).end());
		const secure = tls.connect({socket, rejectUnauthorized: false});
		await ask({createConnection: () => secure, path: "/"}, body);
		secure.destroy();
	}
	agent.destroy();
})().catch(e => { console.error(e); process.exit(1); });`
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: hosts})
		g := start(t, trust(p), through(t, p))
		out := program(t, nil, "node", "-e", script, g.address)
		if want := strings.Repeat("200 GET shop.example \n200 POST shop.example sent\n", 2); out != want {
			t.Errorf("%v: node gets %q, want %q", protocol, out, want)
		}
	}
}
