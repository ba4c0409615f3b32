package plugins

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

func TestLinesAreNeverTrusted(t *testing.T) {
	for _, tc := range []struct {
		name, line string
		level      hclog.Level
		message    string
		fields     int
	}{
		{"plain", "starting up", hclog.Info, "starting up", 0},
		{"hclog", `{"@level":"warn","@message":"slow","@timestamp":"2026-01-01T00:00:00Z","ms":7,"who":"x"}`, hclog.Warn, "slow", 4},
		{"message is a number", `{"@level":"warn","@message":7}`, hclog.Info, `{"@level":"warn","@message":7}`, 0},
		{"level is an object", `{"@level":{"a":1},"@message":"m"}`, hclog.Info, "m", 0},
		{"level off", `{"@level":"off","@message":"m"}`, hclog.Info, "m", 0},
		{"level made up", `{"@level":"fatal","@message":"m"}`, hclog.Info, "m", 0},
		{"timestamp is a list", `{"@level":"error","@message":"m","@timestamp":[1]}`, hclog.Error, "m", 0},
		{"half of it", `{"@message":"m`, hclog.Info, `{"@message":"m`, 0},
		{"a list", `[1,2]`, hclog.Info, "[1,2]", 0},
		{"null", `null`, hclog.Info, "null", 0},
		{"newline in the message", `{"@message":"a\nforged"}`, hclog.Info, `a\u000aforged`, 0},
		{"terminal escape", "\x1b[2Jx", hclog.Info, `\u001b[2Jx`, 0},
		{"no UTF-8", "a\xffb", hclog.Info, `a\xffb`, 0},
		{"right to left", "a\u202eb", hclog.Info, `a\u202eb`, 0},
	} {
		level, msg, fields := parseLine([]byte(tc.line), func(s string) string { return s })
		if level != tc.level || msg != tc.message || len(fields) != tc.fields {
			t.Errorf("%s: %v %q %v", tc.name, level, msg, fields)
		}
	}
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{"", "x", `{"@message":"m","a":{"b":[1]}}`, `{"@message":{}}`, "\x1b\xff", strings.Repeat("[", 2000)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var log bytes.Buffer
		o := newOutput(hclog.New(&hclog.LoggerOptions{Output: &log, DisableTime: true}), map[string]string{"T": "secret-token"}, func(int) {})
		o.stderr(line)
		for what, s := range map[string]string{"log": log.String(), "words": o.words(), "cause": o.cause()} {
			if !utf8.ValidString(s) || strings.ContainsAny(strings.TrimRight(s, "\n"), "\x00\x1b\r\n") || strings.Contains(s, "secret-token") {
				t.Fatalf("%s: %q", what, s)
			}
		}
	})
}

func TestOutputIsRatedAndBounded(t *testing.T) {
	var log bytes.Buffer
	dropped := 0
	o := newOutput(hclog.New(&hclog.LoggerOptions{Output: &log}), nil, func(n int) { dropped += n })
	o.stderr([]byte("panic: the cause"))
	for range 100_000 {
		o.stdout([]byte(strings.Repeat("x", 100)))
	}
	if dropped < 50_000 {
		t.Errorf("%d lines dropped of 100,000", dropped)
	}
	if n := len(o.words()); n > keptBytes+keptLines {
		t.Errorf("%d bytes kept", n)
	}
	o.stderr([]byte(`{"@message":"cannot open","error":"no such file"}`))
	if c := o.cause(); c != "cannot open: no such file" {
		t.Errorf("cause %q", c)
	}
	o.mu.Lock()
	_, ok := o.admit(time.Now().Add(time.Minute))
	o.mu.Unlock()
	if !ok {
		t.Error("still over the rate a minute later")
	}
}

func TestSecretsAreMasked(t *testing.T) {
	var log bytes.Buffer
	o := newOutput(hclog.New(&hclog.LoggerOptions{Output: &log}), map[string]string{"API_TOKEN": "tok-123456"}, func(int) {})
	o.stderr([]byte("using tok-123456"))
	o.stderr([]byte(`{"@message":"call","url":"http://x/?t=tok-123456"}`))
	for what, s := range map[string]string{"log": log.String(), "words": o.words(), "cause": o.cause()} {
		if strings.Contains(s, "tok-123456") {
			t.Errorf("%s: %q", what, s)
		}
	}
}
