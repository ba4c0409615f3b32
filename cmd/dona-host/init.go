package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
)

// What dona-host init makes in its directory.
const (
	configFile  = "dona.yaml"
	dataFolder  = "data"
	adminFolder = "admin" // an identity's directory for each operator: admin/<name>
)

const defaultOperator = "operator"

// prepare runs dona-host init and dona-host operator: both work on the directory of a
// host that does not run.
func prepare(verb string, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	domain := ""
	if verb == "init" {
		flags.StringVar(&domain, "trust-domain", config.Defaults().TrustDomain, "")
	}
	var req host.OperatorRequest
	if verb == "operator" {
		flags.BoolVar(&req.NewAuthority, "new-authority", false, "")
		flags.BoolVar(&req.NewAttestation, "new-attestation-key", false, "")
	}
	name := &req.Name
	flags.StringVar(name, "name", defaultOperator, "")
	dir, err := "", error(nil)
	if len(args) > 0 && (args[0] == "" || args[0][0] != '-') { // the directory may come before the flags, or after
		dir, args = args[0], args[1:]
	}
	err = flags.Parse(args)
	if err == nil && dir == "" && flags.NArg() == 1 {
		dir = flags.Arg(0)
	} else if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		prepareUsage(verb, stdout)
		return exitOK
	case err == nil && dir == "":
		err = errors.New("it wants a directory")
	case err == nil:
		if wrong := limits.Name(*name); wrong != nil {
			err = fmt.Errorf("--name %w", wrong)
		} else if verb == "init" {
			err = checkDomain(domain)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "dona-host %s: %s; dona-host %s --help says how\n", verb, err, verb)
		return exitUsage
	}
	if dir, err = filepath.Abs(dir); err == nil {
		if verb == "init" {
			err = initialise(dir, domain, *name, stdout, stderr)
		} else {
			err = operator(dir, req, stdout, stderr)
		}
	}
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		return badConfig(stderr, err)
	case err == nil:
		return exitOK
	}
	_, _ = fmt.Fprintf(stderr, "dona-host %s: %s\n", verb, err)
	if errors.Is(err, store.ErrRefused) {
		return exitRefused
	}
	return exitFailed
}

// checkDomain refuses a trust domain that the configuration would, before anything is made.
func checkDomain(domain string) error {
	_, err := config.Load("", nil, map[string]string{"trust-domain": domain})
	var wrong *config.Error
	if errors.As(err, &wrong) && len(wrong.Problems) > 0 {
		return fmt.Errorf("--trust-domain %s", wrong.Problems[0].Text)
	}
	return err
}

// quoted is a path as a shell takes it.
func quoted(path string) string {
	for _, c := range path {
		if !strings.ContainsRune("/._-+@%=:,", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
		}
	}
	return path
}

func prepareUsage(verb string, w io.Writer) {
	if verb == "operator" {
		_, _ = fmt.Fprintf(w, `dona-host operator DIR gives an operator of the host in DIR a fresh identity, for a day.
It works while the host does not run; a host that runs gives one for a token, which
another operator makes: dona svid token create --path admin/NAME.

  --name NAME       of the operator (%s)
  --new-authority   first put another authority into the place of the one there is, when
                    its key is lost or it has ended: the one of identity.ca_cert, or a new
                    one. Who has an SVID needs a token then, and a new one
  --new-attestation-key
                    forget the attestation key, which is lost, and have the next start
                    take the one of audit.key_file, or make one. Who verifies has to be
                    given its public half
`, defaultOperator)
		return
	}
	_, _ = fmt.Fprintf(w, `dona-host init DIR prepares a secured host in DIR, which must not be there or be empty:
the authority of its trust domain, the identity of its operator, and %s.

  --trust-domain NAME   SPIFFE trust domain (%s)
  --name NAME           of the operator (%s)
`, configFile, config.Defaults().TrustDomain, defaultOperator)
}

// initialise makes all of a secured setup, or nothing.
func initialise(dir, domain, name string, stdout, stderr io.Writer) (err error) {
	_, err = os.Lstat(dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := datadir.Prepare(dir); err != nil {
		return err
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("%w: %s is not empty (it has %s); name a directory that is, or that is not there", store.ErrRefused, dir, there[0].Name())
	}
	defer func() {
		if err != nil { // nothing of it was there before
			for _, made := range []string{configFile, dataFolder, adminFolder} {
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, made)))
			}
			if fresh {
				err = errors.Join(err, os.Remove(dir))
			}
		}
	}()
	data, err := json.Marshal(filepath.Join(dir, dataFolder)) // a string of JSON is one of YAML
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`# Written by dona-host init. docs/configuration.md lists all settings.
trust_domain: %s
data_dir: %s

# Other machines reach the host when it listens on more than loopback.
grpc:
  listen: %s
http:
  listen: %s
`, domain, data, config.Defaults().GRPCListen, config.Defaults().HTTPListen)
	if err := datadir.WriteFile(filepath.Join(dir, configFile), []byte(text)); err != nil {
		return err
	}
	o, err := issue(dir, host.OperatorRequest{Name: name}, stderr)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, `made %[1]s, with
  %[2]s: the configuration
  %[3]s: the host's state, and in its folder ca the authority's key: keep it to yourself
  %[4]s/%[5]s: the identity %[6]s, valid for a day

Now start the host:
  dona-host --config %[7]s

and in another terminal, be its operator:
  export DONA_IDENTITY=%[8]s
  dona services
  dona svid token create --service checkout     (lets a workload have its identity)

dona svid renew replaces the identity by its next one, for an hour at a time unless
identity.ttl says otherwise. Once it has expired, stop the host and run dona-host operator %[9]s --name %[5]s.
`, dir, configFile, dataFolder, adminFolder, name, o.ID,
		quoted(filepath.Join(dir, configFile)), quoted(filepath.Join(dir, adminFolder, name)), quoted(dir))
	return nil
}

// operator renews the identity of an operator.
func operator(dir string, req host.OperatorRequest, stdout, stderr io.Writer) error {
	o, err := issue(dir, req, stderr)
	if err != nil {
		return err
	}
	if req.NewAuthority {
		_, _ = fmt.Fprintln(stdout, "another authority signs from now on; hosts and operators and workloads that know the one before alone do not trust it: give each a new SVID, and hosts that share the store its key")
	}
	_, _ = fmt.Fprintf(stdout, "%s has the identity %s, valid for a day\n", filepath.Join(dir, adminFolder, req.Name), o.ID)
	return nil
}

// issue has the host in dir issue an operator's identity, and writes it there.
func issue(dir string, req host.OperatorRequest, stderr io.Writer) (*host.Operator, error) {
	c, err := config.Load(filepath.Join(dir, configFile), nil, nil)
	if err != nil {
		return nil, err
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "dona-host", Level: hclog.Warn, Output: stderr})
	o, err := host.IssueOperator(context.Background(), c, req, log)
	if err != nil {
		return nil, err
	}
	at := filepath.Join(dir, adminFolder, req.Name)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	for file, data := range map[string][]byte{"cert.pem": o.Cert, "key.pem": o.Key, "bundle.pem": o.Bundle} {
		if err := datadir.WriteFile(filepath.Join(at, file), data); err != nil {
			return nil, err
		}
	}
	return o, nil
}
