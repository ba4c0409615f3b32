package ingress_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/sdk/dona/ingress"
)

func rule(service, host, prefix string) ingress.Rule {
	return ingress.Rule{Service: service, Host: host, PathPrefix: prefix}
}

func TestResolve(t *testing.T) {
	table, err := ingress.New([]ingress.Rule{
		rule("shop", "shop.example.com", "/"), rule("api", "shop.example.com", "/api"), rule("api-v2", "shop.example.com", "/api/v2"),
		rule("tenants", "*.example.com", "/"), rule("tenants-admin", "*.example.com", "/admin"), rule("eu", "*.eu.example.com", "/"),
		rule("docs", "docs.example.com", "/docs"), rule("dev", "127.0.0.1", "/"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ host, path, want string }{
		{"shop.example.com", "/", "shop"},
		{"shop.example.com", "/apis", "shop"},
		{"shop.example.com", "/api", "api"},
		{"shop.example.com", "/api/", "api"},
		{"shop.example.com", "/api/v1/x", "api"},
		{"shop.example.com", "/api/v2/x", "api-v2"},
		{"SHOP.Example.com:8080", "/api", "api"},
		{"shop.example.com.", "/x", "shop"},
		{"a.example.com", "/x", "tenants"},
		{"a.b.example.com", "/admin/x", "tenants-admin"},
		{"x.eu.example.com", "/admin", "eu"}, // the longer suffix goes first
		{"eu.example.com", "/", "tenants"},
		{"docs.example.com", "/docs/a", "docs"},
		{"docs.example.com", "/else", "tenants"}, // the exact host has no rule for it
		{"example.com", "/", ""},
		{".example.com", "/", ""},
		{"127.0.0.1:7600", "/x", "dev"},
		{"[::1]:7600", "/x", ""},
		{"", "/", ""},
		{".", "/", ""},
		{"..", "/", ""},
		{"shop.example.com", "", ""},
		{"shop.example.com", "*", ""},
		{"shop.example.com", "//api//v2/x", "api-v2"},
		{"shop.example.com", "/x/../api", "api"},
		{"shop.example.com", "/../api", "api"},
		{"shop.example.com", "/api/v2/" + strings.Repeat("x/", 5000), "api-v2"},
		{"shop.example.com", "/" + strings.Repeat("x", 5000), "shop"},
	} {
		got, found := table.Resolve(c.host, c.path)
		if got.Service != c.want || found != (c.want != "") {
			t.Errorf("%s %.40s: %q, want %q", c.host, c.path, got.Service, c.want)
		}
	}
	var none ingress.Table
	if r, found := none.Resolve("a.b", "/"); found {
		t.Errorf("a table without rules gives %v", r)
	}
}

func TestLongestPrefix(t *testing.T) {
	long := "/" + strings.Repeat("x", ingress.MaxPrefix-1)
	table, err := ingress.New([]ingress.Rule{rule("long", "a", long), rule("root", "a", "/")})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{long: "long", long + "/y": "long", long + "y": "root"} {
		if got, _ := table.Resolve("a", path); got.Service != want {
			t.Errorf("a path of %d bytes: %s, want %s", len(path), got.Service, want)
		}
	}
}

func TestGrammar(t *testing.T) {
	for host, ok := range map[string]bool{
		"a": true, "a.b": true, "*.b": true, "a_b.c-d": true, "127.0.0.1": true, strings.Repeat("a.", 126) + "b": true,
		"": false, "*": false, "*.": false, "a.*": false, "*.*.b": false, "A": false, "a.": false, ".a": false, "a..b": false, "-a": false, "a-": false,
		"a:80": false, "a/b": false, "a b": false, "ä": false, strings.Repeat("a", 64): false, strings.Repeat("a.", 126) + "bc": false,
	} {
		if err := ingress.CheckHost(host); (err == nil) != ok {
			t.Errorf("host %q: %v", host, err)
		}
	}
	for prefix, ok := range map[string]bool{
		"/": true, "/a": true, "/a/b.c": true, "/über": true, "/" + strings.Repeat("x", ingress.MaxPrefix-1): true,
		"": false, "a": false, "/a/": false, "//": false, "/a//b": false, "/a/./b": false, "/a/..": false, "/a?b": false, "/a#b": false,
		"/a%20b": false, `/a\b`: false, "/a\n": false, "/\xff": false, "/" + strings.Repeat("x", ingress.MaxPrefix): false,
	} {
		if err := ingress.CheckPrefix(prefix); (err == nil) != ok {
			t.Errorf("prefix %.40q: %v", prefix, err)
		}
	}
}

// TestNew: what is wrong with one rule does not cost the others.
func TestNew(t *testing.T) {
	table, err := ingress.New([]ingress.Rule{rule("a", "a.b", "/"), rule("c", "A.B", "/"), rule("d", "a.b", "/"), rule("", "d", "/"), rule("e", "e", "e")})
	if got := table.Rules(); len(got) != 1 || got[0].Service != "a" {
		t.Errorf("the rules are %v", got)
	}
	if err == nil || strings.Count(err.Error(), "ingress rule") != 4 {
		t.Errorf("the error is %v, want one for each of four rules", err)
	}
}

// TestResolveIsTheBestMatch compares with the definition: of all rules that
// match, the best.
func TestResolveIsTheBestMatch(t *testing.T) {
	hosts := rapid.SampledFrom([]string{"a", "b.a", "c.b.a", "*.a", "*.b.a", "*.c.b.a"})
	prefixes := rapid.SampledFrom([]string{"/", "/x", "/x/y", "/x/y/z", "/xy"})
	rapid.Check(t, func(t *rapid.T) {
		var rules []ingress.Rule
		for range rapid.IntRange(0, 8).Draw(t, "rules") {
			r := rule("s", hosts.Draw(t, "host"), prefixes.Draw(t, "prefix"))
			if !slices.ContainsFunc(rules, func(o ingress.Rule) bool { return o.Host == r.Host && o.PathPrefix == r.PathPrefix }) {
				rules = append(rules, r)
			}
		}
		table, err := ingress.New(rules)
		if err != nil {
			t.Fatal(err)
		}
		host := rapid.SampledFrom([]string{"a", "b.a", "c.b.a", "d.c.b.a", "x"}).Draw(t, "asked host")
		path := rapid.SampledFrom([]string{"/", "/x", "/x/", "/x/y", "/xy", "/x/y/z/0", "/q"}).Draw(t, "asked path")
		best, found := -1, false
		var want ingress.Rule
		for _, r := range rules {
			if s := score(r, host, path); s > best {
				best, want, found = s, r, true
			}
		}
		got, ok := table.Resolve(host, path)
		if ok != found || got.Host != want.Host || got.PathPrefix != want.PathPrefix {
			t.Fatalf("%s %s among %v: %v, want %v", host, path, rules, got, want)
		}
	})
}

// score is -1 for a rule that does not match, and higher for a better one.
func score(r ingress.Rule, host, path string) int {
	h := 1000
	if suffix, ok := strings.CutPrefix(r.Host, "*"); ok {
		if !strings.HasSuffix(host, suffix) || len(host) == len(suffix) {
			return -1
		}
		h = len(suffix)
	} else if host != r.Host {
		return -1
	}
	if p := r.PathPrefix; p != "/" && path != p && !strings.HasPrefix(path, p+"/") {
		return -1
	}
	return h*100 + len(r.PathPrefix)
}

// FuzzResolve: whatever is asked, the answer is a rule of the table that covers
// the host, and a request for a rule's own host and prefix gets that rule.
func FuzzResolve(f *testing.F) {
	f.Add("shop.example.com", "/api", "a.example.com:80", "/api/../x")
	f.Add("*.example.com", "/", "a..example.com", "//")
	f.Fuzz(func(t *testing.T, host, prefix, asked, path string) {
		rules := []ingress.Rule{rule("one", host, prefix), rule("two", "*.example.com", "/"), rule("three", "x.example.com", "/x")}
		table, err := ingress.New(rules)
		if (ingress.CheckHost(host) != nil || ingress.CheckPrefix(prefix) != nil) && err == nil {
			t.Fatalf("the rule %q %q is taken", host, prefix)
		}
		got, found := table.Resolve(asked, path)
		if found && !slices.ContainsFunc(table.Rules(), func(r ingress.Rule) bool { return r.Service == got.Service && r.Host == got.Host }) {
			t.Fatalf("%q %q gives %v", asked, path, got)
		}
		for _, r := range table.Rules() {
			own := strings.Replace(r.Host, "*", "zzz", 1)
			if best, found := table.Resolve(own, r.PathPrefix); !found || score(best, own, r.PathPrefix) < score(r, own, r.PathPrefix) {
				t.Fatalf("%q %q gives %v, %v: worse than the rule itself", own, r.PathPrefix, best, found)
			}
		}
	})
}
