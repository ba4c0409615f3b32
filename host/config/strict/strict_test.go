package strict_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/config/strict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProblemsAreInTheDocumentsOrder(t *testing.T) {
	err := strict.Read("f", []byte("a: x\nb: 70\nc: 5\nd: [1, 2]\n"), func(root strict.Value) {
		var late strict.Value
		var n uint32
		var d time.Duration
		root.Fields(strict.Fields{
			"a": func(v strict.Value) { late = v },
			"b": func(v strict.Value) { v.Uint(&n, 1, 64) },
			"c": func(v strict.Value) { v.Duration(&d, time.Second, 90*time.Minute) },
			"d": func(v strict.Value) { v.Items(1, func(int, strict.Value) {}) },
			"e": func(strict.Value) {},
		}, "e")
		late.Refuse("is judged last")
	})
	want := `f:1:1: e: is missing (it is required)
f:1:4: a: is judged last
f:2:4: b: is "70" (allowed: 1 to 64)
f:3:4: c: is "5" (allowed: 1s to 1h30m, with a unit)
f:4:4: d: has 2 items (allowed: at most 1)`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestAny(t *testing.T) {
	var got any
	read := func(text string) error {
		return strict.Read("f", []byte(text), func(root strict.Value) { got = root.Any() })
	}
	if err := read("a: [1, 0x10, 1.5, yes, true, null, ~, '7', 2001-01-01]\nb: {c: {}}"); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"a": []any{1.0, 16.0, 1.5, "yes", true, nil, nil, "7", "2001-01-01"},
		"b": map[string]any{"c": map[string]any{}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", got, want)
	}
	for _, text := range []string{
		"a: .inf", "a: .nan", "a: !!float 1", "a: &x 1\nb: *x", "a: 1\na: 2", "? [a]\n: b", "? {a: b}\n: c",
		strings.Repeat("a: {", 30) + strings.Repeat("}", 30), strings.Repeat("[", 30) + strings.Repeat("]", 30), "a: \"\\0\"",
	} {
		var all *strict.Error
		if err := read(text); !errors.As(err, &all) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestSmallDocumentsStaySmall: aliases are refused before they are followed.
func TestSmallDocumentsStaySmall(t *testing.T) {
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 8) + "*" + string(c-1) + "]\n"
	}
	err := strict.Read("f", []byte(bomb), func(root strict.Value) { root.Any() })
	if err == nil || !strings.Contains(err.Error(), "anchor or an alias") {
		t.Errorf("got %v", err)
	}
}

func FuzzAny(f *testing.F) {
	f.Add([]byte("a: [1, {b: c}]\n# x\n"))
	f.Add([]byte("%YAML 1.1\n---\n- &a *a\n...\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		err := strict.Read("f", text, func(root strict.Value) { root.Any() })
		var all *strict.Error
		if err != nil && (!errors.As(err, &all) || len(all.Problems) == 0) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
