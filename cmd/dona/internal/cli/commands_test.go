package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dodona-project/dodona/cmd/dona/internal/terminal"
)

// testApp is a run of the program without a process of its own.
func testApp(env map[string]string) (a *app, out, errOut *bytes.Buffer) {
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	getenv := func(name string) string { return env[name] }
	a = &app{stdin: strings.NewReader(""), out: out, errOut: errOut, getenv: getenv, now: time.Now}
	a.screen = terminal.New(out, getenv)
	return a, out, errOut
}

// leaves are the commands that do something, by the words that call them.
func leaves(t *testing.T) map[string]*cobra.Command {
	t.Helper()
	a, _, _ := testApp(nil)
	all := map[string]*cobra.Command{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.HasSubCommands() {
			all[strings.TrimPrefix(c.CommandPath(), "dona ")] = c
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(a.root())
	if len(all) < 30 {
		t.Fatalf("there are only %d commands", len(all))
	}
	return all
}

// needed are flags that a command does not go without.
var needed = map[string]string{
	"rollout start":     "--canary v2 --stable v1",
	"flag set":          "--percent 10 --variant v2",
	"policy set":        "--strategy random",
	"artifact register": "--version 1 --digest sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
	"release create":    "--artifact 1 --variant v2",
	"deploy start":      "--release 1 --strategy recreate",
	"share set":         "--consumer *",
	"store adopt":       "--reason why",
	"store restore":     "--data-dir d",
	"svid token create": "--service checkout",
	"svid issue":        "--token t --out identity --bootstrap 127.0.0.1:1",
	"svid agent":        "--token t --socket private/agent.sock --bootstrap 127.0.0.1:1 --timeout 3s",
	"demo":              "--dona-host nowhere",
	"attest fetch":      "--out d",
	"plugin new":        "--module-dir nowhere",
	"pool extract":      "--upstream acme",
	"pool routing set":  "--enabled",
}

// withoutHost are the commands that ask no host, and how they end here.
var withoutHost = map[string]int{
	"bucket": ExitOK, "version": ExitOK, "completion": ExitOK, "store restore": ExitUsage, "demo": ExitConfig, "svid renew": ExitUsage,
	"attest verify": ExitConfig, "attest verify-segments": ExitConfig, "pool config check": ExitOK,
	"plugin install": ExitUsage, "plugin lock": ExitUsage, "plugin verify": ExitUsage,
	"plugin new": ExitUsage, "plugin test": ExitUsage,
}

// TestEveryCommandAnswersInJSON: with --json each command has one JSON value on
// stdout, an error too, and its exit code stands in it.
func TestEveryCommandAnswersInJSON(t *testing.T) {
	t.Chdir(t.TempDir())
	values := map[string]string{
		"SERVICE": "checkout", "FLAG": "new-ui", "VARIANT": "v2", "PLUGIN": "analysis/prometheus",
		"HOST": "shop.example.com", "ID": "0123456789abcdef", "FILE": "b.db", "UNIT": "u", "SHELL": "bash", "DIR": "nowhere",
		"KIND": "probe", "NAME": "my-check",
		"UPSTREAM": "acme", "ROUTING": "shop", "PROXY": "px-1", "YAML": "pool.yaml", "LIST": "pool.yaml",
	}
	if err := os.WriteFile("pool.yaml", []byte("cluster: {id: east}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, c := range leaves(t) {
		if c.Name() == "demo-service" {
			continue // writes nothing but errors, and lives until its stdin ends
		}
		line := strings.Fields(path)
		for _, name := range argumentNames(c) {
			line = append(line, values[name])
		}
		line = append(line, strings.Fields(needed[path])...)
		wrong := append(slices.Clone(line), "--bogus", "--json")
		twice := append(slices.Clone(line), "--json", "--json")
		away := append(slices.Clone(line), "--json")

		code, local := withoutHost[path]
		if !local {
			code = ExitFailed
		}
		for _, run := range []struct {
			args []string
			code int
			kind string
		}{{wrong, ExitUsage, "USAGE"}, {twice, ExitUsage, "USAGE"}, {away, code, ""}} {
			a, out, errOut := testApp(map[string]string{"DONA_HOST": "127.0.0.1:1"})
			got := a.run(context.Background(), run.args)
			var answer struct {
				Error *struct {
					Code, Message string
					Exit          int
				}
			}
			if err := json.Unmarshal(out.Bytes(), &answer); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 1 {
				t.Errorf("dona %q: stdout is %q: %v", run.args, out, err)
				continue
			}
			kind := run.kind
			if kind == "" && !local {
				kind = "AWAY"
			}
			switch e := answer.Error; {
			case got != run.code:
				t.Errorf("dona %q: exit code %d, want %d: %s", run.args, got, run.code, out)
			case got == ExitOK && (e != nil || errOut.Len() > 0):
				t.Errorf("dona %q went well, and says %s%s", run.args, out, errOut)
			case got != ExitOK && (e == nil || e.Exit != got || kind != "" && e.Code != kind || !strings.Contains(errOut.String(), "dona: ")):
				t.Errorf("dona %q: %s%s, want %s and exit %d in it", run.args, out, errOut, kind, got)
			}
		}
	}
}

// TestThePageHasEveryCommand compares docs/cli.md with the program: its commands and
// its flags, in both directions.
func TestThePageHasEveryCommand(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(strings.ReplaceAll(string(raw), "\\\n", " ")), " ")
	a, _, _ := testApp(nil)
	root := a.root()
	root.InitDefaultHelpCmd()

	shown := map[string]bool{}
	for _, m := range regexp.MustCompile("(?:`|\\$ |    |\\n)dona((?: [a-z][a-z-]*)+)").FindAllStringSubmatch(string(raw)+"\n"+page, -1) {
		words := strings.Fields(m[1])
		c, left, err := root.Find(words)
		if err != nil || len(left) > 0 && c.HasSubCommands() {
			t.Errorf("docs/cli.md shows dona%s: there is no such command", m[1])
			continue
		}
		shown[strings.TrimPrefix(c.CommandPath(), "dona ")] = true
	}
	flags := map[string]bool{"help": true}
	for path, c := range leaves(t) {
		if !shown[path] {
			t.Errorf("docs/cli.md does not have dona %s", path)
		}
		note := func(f *pflag.Flag) {
			flags[f.Name] = true
			named := regexp.MustCompile("--"+f.Name+`($|[^\w-])`).MatchString(page) || f.Shorthand != "" && strings.Contains(page, "[-"+f.Shorthand+"]")
			if !named {
				t.Errorf("docs/cli.md does not have --%s of dona %s", f.Name, path)
			}
		}
		c.LocalFlags().VisitAll(note)
		c.InheritedFlags().VisitAll(note)
	}
	for _, m := range regexp.MustCompile(`[^\w-]--([a-z][a-z-]*)`).FindAllStringSubmatch(page, -1) {
		if !flags[m[1]] && m[1] != "dev" { // of dona-host
			t.Errorf("docs/cli.md shows --%s: no command has such a flag", m[1])
		}
	}
}
