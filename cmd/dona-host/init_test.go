package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// tool runs a program to its end and returns what it wrote, both streams together.
func tool(t *testing.T, env []string, name string, args ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// secure is a directory that dona-host init has made, and its host, not started yet.
func secure(t *testing.T) (dir string, p *process) {
	t.Helper()
	name := binary(t)
	dir = filepath.Join(t.TempDir(), "secured")
	out, code := tool(t, nil, name, "init", dir, "--trust-domain", "prod.example.org", "--name", "ann")
	if code != 0 {
		t.Fatalf("init ends with %d: %s", code, out)
	}
	for _, want := range []string{"dona-host --config " + dir + "/dona.yaml", "export DONA_IDENTITY=" + dir + "/admin/ann", "spiffe://prod.example.org/admin/ann"} {
		if !strings.Contains(out, want) {
			t.Errorf("init does not say %q:\n%s", want, out)
		}
	}
	p = newProcess(t)
	p.dir, p.config = filepath.Join(dir, "data"), filepath.Join(dir, "dona.yaml")
	p.args = []string{"--bootstrap-listen", freePort(t), "--identity-host-keys"}
	return dir, p
}

// workload is an identity that was issued for a token, and its key.
type workload struct {
	*x509svid.SVID
	*x509bundle.Bundle
}

func issueFor(t *testing.T, admin *grpc.ClientConn, bootstrap, service string) (w workload, token string, key []byte) {
	t.Helper()
	ctx := context.Background()
	made, err := donav1.NewHostAdminClient(admin).CreateToken(ctx, &donav1.CreateTokenRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(bootstrap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	issued, err := donav1.NewIdentityClient(conn).IssueSvid(ctx, &donav1.IssueSvidRequest{BootstrapToken: made.Token, Service: service,
		CsrPem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := donav1.NewIdentityClient(conn).IssueSvid(ctx, &donav1.IssueSvidRequest{BootstrapToken: made.Token, Service: service,
		CsrPem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})}); status.Code(err) != codes.PermissionDenied || strings.Contains(err.Error(), made.Token) {
		t.Errorf("the token a second time: %v", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	w = parsed(t, issued.CertPem, key, issued.BundlePem)
	return w, made.Token, key
}

func parsed(t *testing.T, cert, key, bundle []byte) (w workload) {
	t.Helper()
	var err error
	if w.SVID, err = x509svid.Parse(cert, key); err != nil {
		t.Fatal(err)
	}
	if w.Bundle, err = x509bundle.Parse(w.ID.TrustDomain(), bundle); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w workload) tls() *tls.Config {
	return tlsconfig.MTLSClientConfig(w, w, tlsconfig.AdaptMatcher(func(id spiffeid.ID) error {
		if !strings.HasPrefix(id.Path(), "/host/") {
			return errors.New("no host answers")
		}
		return nil
	}))
}

func (p *process) as(w workload) *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(credentials.NewTLS(w.tls())), grpc.WithConnectParams(fastRetry))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestInit goes the whole way: init, a host, its operator by the command line, a
// workload that gets its identity for a token and registers, and another one that is
// refused. What all of that leaves behind holds no secret.
func TestInit(t *testing.T) {
	t.Parallel()
	dir, p := secure(t)
	name := binary(t)
	for path, mode := range map[string]fs.FileMode{".": 0o700, "dona.yaml": 0o600, "data": 0o700, "data/ca": 0o700, "admin/ann": 0o700, "admin/ann/key.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, mode)
		}
	}
	if out, code := tool(t, nil, name, "init", dir); code != exitRefused || !strings.Contains(out, "not empty") {
		t.Errorf("init again ends with %d: %s", code, out)
	}
	p.start()
	bootstrap := p.args[1]

	// The operator, by the command line.
	cli := donaProgram(t)
	admin := []string{"DONA_IDENTITY=" + filepath.Join(dir, "admin", "ann"), "DONA_HOST=" + p.grpc}
	secretUnit, said := "unit-of-a-person-7f3a", ""
	run := func(env []string, want int, args ...string) string {
		t.Helper()
		out, code := tool(t, env, cli, args...)
		if code != want {
			t.Errorf("dona %s ends with %d, want %d: %s", strings.Join(args, " "), code, want, out)
		}
		said += out
		return out
	}
	run(admin, 0, "flag", "set", "web", "new-ui", "--percent", "50", "--variant", "v1")
	if out := run([]string{"DONA_HOST=" + p.grpc}, 1, "services"); !strings.Contains(out, "--identity") {
		t.Errorf("without an identity: %s", out)
	}
	if out := run([]string{"DONA_HOST=" + p.grpc, "DONA_IDENTITY=" + dir}, 3, "services"); !strings.Contains(out, "DONA_IDENTITY") {
		t.Errorf("with a directory that holds none: %s", out)
	}
	stranger, _ := secure(t)
	run([]string{"DONA_HOST=" + p.grpc}, 1, "services", "--identity", filepath.Join(stranger, "admin", "ann"))

	// The workloads.
	read := func(file string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, "admin", "ann", file))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	ann := p.as(parsed(t, read("cert.pem"), read("key.pem"), read("bundle.pem")))
	web, webToken, webKey := issueFor(t, ann, bootstrap, "web")
	other, otherToken, otherKey := issueFor(t, ann, bootstrap, "other")
	client, err := dona.Dial(t.Context(), p.grpc, dona.WithTransportCredentials(credentials.NewTLS(web.tls())), dona.WithoutCache(),
		dona.WithCaller("web", "eu"), dona.WithReportInterval(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Register(t.Context(), dona.OwnEndpoint{Service: "web", ID: "web-a", Address: "127.0.0.1:80", Variant: "v1", Region: "eu"}); err != nil {
		t.Fatal(err)
	}
	if err := client.Service("web").Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "a decision", func() bool {
		pick, err := client.Service("web").Pick(t.Context(), dona.Request{Unit: secretUnit})
		if err == nil {
			pick.Done(dona.Outcome{Success: true})
		}
		return err == nil
	})
	beats, err := donav1.NewControlPlaneClient(p.as(other)).RegisterEndpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := beats.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: "evil", Address: "127.0.0.1:81", Variant: "v1"}); err != nil {
		t.Fatal(err)
	}
	_, err = beats.CloseAndRecv()
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("another service's workload registers: %v", err)
	}
	said += err.Error()
	if out := run(admin, 0, "status", "web"); !strings.Contains(out, "web-a") || strings.Contains(out, "evil") {
		t.Errorf("the status is %s", out)
	}
	run(admin, 1, "status", "nope")
	if err := client.Close(); err != nil {
		t.Error(err)
	}

	// What of it is on record, signed.
	reports := filepath.Join(t.TempDir(), "reports")
	run(admin, 0, "attest", "fetch", "web", "--out", reports)
	if out := run(nil, 0, "attest", "verify", reports, "--key", filepath.Join(dir, "data", "attestation.pem"), "--no-memory"); !strings.Contains(out, "web in prod.example.org") {
		t.Errorf("verified is %s", out)
	}
	report, err := os.ReadFile(filepath.Join(reports, "report.json"))
	if err != nil || !bytes.Contains(report, []byte(`"actor":"spiffe://prod.example.org/admin/ann"`)) {
		t.Errorf("the report is %s, %v", report, err)
	}

	// What a host says of a password that is in the wrong place.
	const password = "correct-horse-battery"
	bad, code := tool(t, nil, name, "--dev", "--store", "redis://user:"+password+"@127.0.0.1:1")
	if code != exitConfig {
		t.Errorf("a password in the URL ends with %d: %s", code, bad)
	}
	web2 := &http.Client{Transport: &http.Transport{TLSClientConfig: web.tls(), DisableKeepAlives: true}}
	resp, err := web2.Get("https://" + p.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(metrics, []byte("dona_svids_issued_total")) {
		t.Error("there are no metrics")
	}

	// While the host runs, nobody else has its store.
	if out, code := tool(t, nil, name, "operator", dir, "--name", "bob"); code != exitRefused {
		t.Errorf("operator beside a running host ends with %d: %s", code, out)
	}
	if code := p.signal(syscall.SIGINT); code != exitInterrupted {
		t.Errorf("the host ends with %d", code)
	}
	if out, code := tool(t, nil, name, "operator", dir, "--name", "bob"); code != 0 {
		t.Errorf("operator ends with %d: %s", code, out)
	}

	secrets := map[string][]byte{"token": []byte(webToken), "other token": []byte(otherToken), "unit": []byte(secretUnit), "password": []byte(password)}
	for i, part := range strings.Split(webToken, "_") {
		if i == 2 {
			secrets["token's secret"] = []byte(part)
		}
	}
	for who, key := range map[string][]byte{"web": webKey, "other": otherKey, "operator": read("key.pem")} {
		block, _ := pem.Decode(key)
		parsedKey, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		scalar, err := parsedKey.(*ecdsa.PrivateKey).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		secrets[who+" key"] = scalar
		secrets[who+" key in PEM"] = []byte(strings.Split(string(key), "\n")[1][:40])
		secrets[who+" key in base64"] = []byte(base64.StdEncoding.EncodeToString(scalar)[:40])
	}
	signer, err := os.ReadFile(filepath.Join(dir, "data", "attestation.key"))
	if err != nil {
		t.Fatal(err)
	}
	secrets["attestation key in PEM"] = []byte(strings.Split(string(signer), "\n")[1][:40])
	left := map[string][]byte{"the host's log": []byte(p.log.String()), "answers": []byte(said), "metrics": metrics, "a refused configuration": []byte(bad), "a report": report}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "key.pem" || d.Name() == "attestation.key" || filepath.Base(filepath.Dir(path)) == "ca" {
			return err // these are where keys are kept
		}
		left[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(left) < 8 {
		t.Errorf("only %d places were searched", len(left))
	}
	found := false
	for where, data := range left {
		found = found || bytes.Contains(data, []byte("spiffe://prod.example.org/svc/web"))
		for what, secret := range secrets {
			if bytes.Contains(data, secret) {
				t.Errorf("%s holds the %s", where, what)
			}
		}
	}
	if !found {
		t.Error("the search does not find what has to be there")
	}
}

// TestNewAuthority: a host whose authority's key is lost has another one made, with an
// operator that it knows.
func TestNewAuthority(t *testing.T) {
	t.Parallel()
	dir, p := secure(t)
	name := binary(t)
	files, err := filepath.Glob(filepath.Join(dir, "data", "ca", "*.pem"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	if code, said := p.refuse(); code != exitRefused || !strings.Contains(said, "--new-authority") {
		t.Errorf("without the key it ends with %d: %s", code, said)
	}
	if out, code := tool(t, nil, name, "operator", dir, "--name", "ann"); code != exitRefused || !strings.Contains(out, "--new-authority") {
		t.Errorf("an operator alone: %d: %s", code, out)
	}
	if out, code := tool(t, nil, name, "init", filepath.Join(dir, "x"), "--new-authority"); code != exitUsage {
		t.Errorf("of a host that is not there yet: %d: %s", code, out)
	}
	if out, code := tool(t, nil, name, "operator", dir, "--new-authority", "--name", "ann"); code != exitOK || !strings.Contains(out, "another authority signs") {
		t.Fatalf("%d: %s", code, out)
	}
	p.start()
	var ann [3][]byte
	for i, file := range []string{"cert.pem", "key.pem", "bundle.pem"} {
		if ann[i], err = os.ReadFile(filepath.Join(dir, "admin", "ann", file)); err != nil {
			t.Fatal(err)
		}
	}
	conn := p.as(parsed(t, ann[0], ann[1], ann[2]))
	h, err := donav1.NewHostAdminClient(conn).GetHost(t.Context(), &donav1.GetHostRequest{})
	if err != nil || h.GetCa().GetActiveKeyId() == "" || h.GetCa().GetOldKeyId() == "" {
		t.Errorf("the host says %v, %v", h.GetCa(), err)
	}
	issueFor(t, conn, p.args[1], "web")
}

// TestInitBadInput: what is refused leaves nothing behind, and what is made says how to
// go on in words that a shell takes.
func TestInitBadInput(t *testing.T) {
	t.Parallel()
	name := binary(t)
	for _, args := range [][]string{
		{"--trust-domain", "Prod.Example"}, {"--trust-domain", "../x"}, {"--trust-domain", ""}, {"--name", "../../x"}, {"--name", ""}, {"extra"}, {"--new-authority"},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		out, code := tool(t, nil, name, append([]string{"init", dir}, args...)...)
		if code != exitUsage || !strings.Contains(out, strings.TrimPrefix(args[0], "--")) {
			t.Errorf("init %q ends with %d: %s", args, code, out)
		}
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("init %q has made its directory", args)
		}
	}
	dir := filepath.Join(t.TempDir(), "it's new")
	out, code := tool(t, nil, name, "init", dir)
	if code != exitOK {
		t.Fatalf("%d: %s", code, out)
	}
	_, rest, _ := strings.Cut(out, "export DONA_IDENTITY=")
	path, _, _ := strings.Cut(rest, "\n")
	if said, err := exec.Command("sh", "-c", "cd "+path+" && ls").CombinedOutput(); err != nil || !strings.Contains(string(said), "cert.pem") {
		t.Errorf("%s: %v\n%s", path, err, said)
	}
}

// TestNewAttestationKey: a host whose attestation key is lost has another one made, on
// record, and whoever verifies has to be given it.
func TestNewAttestationKey(t *testing.T) {
	t.Parallel()
	dir, p := secure(t)
	name := binary(t)
	cli := donaProgram(t)
	memory, env := filepath.Join(t.TempDir(), "seen.json"), []string{"DONA_IDENTITY=" + filepath.Join(dir, "admin", "ann"), "DONA_HOST=" + p.grpc}
	verify := func(key string) (out string, code int) {
		reports := filepath.Join(t.TempDir(), "reports")
		if out, code := tool(t, env, cli, "attest", "fetch", "@host", "--out", reports); code != 0 {
			t.Fatalf("fetch ends with %d: %s", code, out)
		}
		args := []string{"attest", "verify", reports, "--memory", memory}
		if key != "" {
			args = append(args, "--key", key)
		}
		return tool(t, env, cli, args...)
	}
	public := filepath.Join(dir, "data", "attestation.pem")
	p.start()
	until(t, "the store to know the key", func() bool { return strings.Contains(p.log.String(), "made the attestation key") })
	if out, code := verify(public); code != 0 {
		t.Fatalf("%d: %s", code, out)
	}
	p.signal(syscall.SIGTERM)
	if err := os.Remove(filepath.Join(dir, "data", "attestation.key")); err != nil {
		t.Fatal(err)
	}
	if code, said := p.refuse(); code != exitRefused || !strings.Contains(said, "--new-attestation-key") {
		t.Errorf("without the key it ends with %d: %s", code, said)
	}
	if out, code := tool(t, nil, name, "operator", dir, "--new-attestation-key", "--name", "ann"); code != exitOK {
		t.Fatalf("%d: %s", code, out)
	}
	p.start()
	if out, code := verify(""); code != 5 || !strings.Contains(out, "signer") {
		t.Errorf("with the key from before: %d: %s", code, out)
	}
	if out, code := verify(public); code != 0 || !strings.Contains(out, "which was seen before") {
		t.Errorf("with the new key: %d: %s", code, out)
	}
	p.kill()
	p.look = nil
	inspect(t, p.dir, func(tx store.ReadTx, log *audit.Log) {
		lines, err := tx.ReadLog("audit/@host", 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, l := range lines {
			found = found || bytes.Contains(l.Payload, []byte("another attestation key takes the place of sha256:"))
		}
		if !found {
			t.Error("it is not on record")
		}
	})
}
