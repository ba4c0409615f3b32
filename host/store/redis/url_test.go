package redis_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
)

func TestParseURL(t *testing.T) {
	for _, tt := range []struct{ url, want string }{ // want: String, or part of the error after "!"
		{"redis://h", "redis://h:6379/0"},
		{"redis://h:7/3", "redis://h:7/3"},
		{"rediss://me@h:7", "rediss://me@h:7/0"},
		{"redis://me@[::1]:7", "redis://me@[::1]:7/0"},
		{"redis://m%40e@h", "!is not a name"},
		{"redis+sentinel://a,b:9,[::1]/main", "redis+sentinel://a:26379,b:9,[::1]:26379/main/0"},
		{"rediss+sentinel://me@a:1/main/2", "rediss+sentinel://me@a:1/main/2"},
		{"redis+cluster://a,b:9", "redis+cluster://a:6379,b:9"},
		{"redis+cluster://a/0", "redis+cluster://a:6379"},
		{"", "!is not a URL"},
		{"h:6379", "!is not a URL"},
		{"http://h", "!scheme \"http\""},
		{"redisx://h", "!scheme \"redisx\""},
		{"redis+x://h", "!scheme \"redis+x\""},
		{"+sentinel://h/m", "!scheme"},
		{"redis://", "!address \"\" has no host name"},
		{"redis://h:0", "!no port of 1 to 65535"},
		{"redis://h:70000", "!no port of 1 to 65535"},
		{"redis://h:x", "!no port"},
		{"redis://a,b", "!has 2 addresses"},
		{"redis://a:1:2", "!is not host:port"},
		{"redis://h/x", "!database \"x\""},
		{"redis://h/-1", "!database \"-1\""},
		{"redis+cluster://h/1", "!a Cluster has only 0"},
		{"redis+sentinel://h", "!master \"\""},
		{"redis+sentinel://h/a b", "!master \"a b\""},
		{"redis://h?password=geheim", "!has a query"},
		{"redis://me:geheim@h", "!store.redis.password_file"},
		{"redis://:geheim@h", "!store.redis.password_file"},
		{"redis://@h", "!user is not a name"},
	} {
		target, err := redis.ParseURL(tt.url)
		switch want, bad := strings.CutPrefix(tt.want, "!"); {
		case bad && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, %v, want an error with %q", tt.url, target, err, want)
		case bad && strings.Contains(err.Error(), "geheim"):
			t.Errorf("%q: the error tells the secret: %v", tt.url, err)
		case !bad && (err != nil || target.String() != want):
			t.Errorf("%q: got %v, %v, want %s", tt.url, target, err, want)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("redis://me@h:7/3")
	f.Add("rediss+sentinel://a,b:9,[::1]/main/2")
	f.Add("redis://a:b@c")
	f.Fuzz(func(t *testing.T, text string) {
		target, err := redis.ParseURL(text)
		if err != nil {
			return
		}
		again, err := redis.ParseURL(target.String())
		if err != nil || again.String() != target.String() {
			t.Errorf("%q parses as %v, which parses as %v, %v", text, target, again, err)
		}
	})
}

// What the settings beside the URL get wrong is refused before anything is made.
func TestBadSettings(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tt := range map[string]struct {
		url    string
		change func(o *redis.Options)
		want   string
	}{
		"cluster":           {"redis://h", func(o *redis.Options) { o.Target.Cluster = "a}b" }, "store.redis.cluster"},
		"replicas":          {"redis://h", func(o *redis.Options) { o.Replicas = -1 }, "store.redis.replicas"},
		"no directory":      {"redis://h", func(o *redis.Options) { o.Dir = "" }, "data_dir"},
		"user, no password": {"redis://me@h", func(*redis.Options) {}, "store.redis.password_file: is empty"},
		"no such file":      {"redis://h", func(o *redis.Options) { o.Target.PasswordFile = filepath.Join(dir, "none") }, "store.redis.password_file"},
		"a loose file":      {"redis://h", func(o *redis.Options) { o.Target.PasswordFile = file("loose", "x", 0o644) }, "chmod 600"},
		"an empty file":     {"redis://h", func(o *redis.Options) { o.Target.PasswordFile = file("empty", "\n", 0o600) }, "one line"},
		"a file of lines":   {"redis://h", func(o *redis.Options) { o.Target.PasswordFile = file("lines", "a\nb\n", 0o600) }, "one line"},
		"a large file":      {"redis://h", func(o *redis.Options) { o.Target.PasswordFile = file("large", strings.Repeat("x", 5000), 0o600) }, "is not a file with a password"},
		"CA without TLS":    {"redis://h", func(o *redis.Options) { o.Target.CAFile = "x" }, "rediss://"},
		"no such CA":        {"rediss://h", func(o *redis.Options) { o.Target.CAFile = filepath.Join(dir, "none") }, "store.redis.ca_file"},
		"no CA in it":       {"rediss://h", func(o *redis.Options) { o.Target.CAFile = file("ca", "x", 0o600) }, "no certificate"},
		"no Sentinels":      {"redis://h", func(o *redis.Options) { o.Target.SentinelPasswordFile = "x" }, "names no Sentinels"},
	} {
		target, err := redis.ParseURL(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		o := redis.Options{Target: target, Dir: filepath.Join(dir, "data")}
		tt.change(&o)
		s, err := redis.Open(t.Context(), o)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want it refused with %q", name, err, tt.want)
		}
		if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
			t.Fatalf("%s: refused, and a data directory was made", name)
		}
	}
}

// A host that cannot read what it has seen does not begin anew.
func TestMemoryFile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"cut off":       {`{"format":1,"clu`, 0o600, "does not parse"},
		"another key":   {`{"format":1,"cluster":"default","seen":{"generation":1,"id":"a"},"x":1}`, 0o600, "does not parse"},
		"newer":         {`{"format":2,"cluster":"default","seen":{"generation":1,"id":"a"}}`, 0o600, "format 2, this program knows up to 1"},
		"of another":    {`{"format":1,"cluster":"x","seen":{"generation":1,"id":"a"}}`, 0o600, "does not say"},
		"nothing in it": {`{}`, 0o600, "does not say"},
		"loose":         {`{"format":1,"cluster":"default","seen":{"generation":1,"id":"a"}}`, 0o644, "chmod 600"},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "redis-default.json")
		if err := os.WriteFile(file, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		target, err := redis.ParseURL("redis://127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		s, err := redis.Open(t.Context(), redis.Options{Target: target, Dir: dir})
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want it refused with %q", name, err, tt.want)
		}
		if text, _ := os.ReadFile(file); string(text) != tt.text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}
