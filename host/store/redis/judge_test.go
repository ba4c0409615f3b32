package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/host/store"
)

func TestJudge(t *testing.T) {
	known := seen{Generation: 2, ID: "g2", Revision: 100, Hard: 90}
	strict := known
	strict.Durable = true
	good := found{Exists: true, Format: 1, Generation: 2, ID: "g2", Master: "run1", Revision: 100, Hard: 90, Confirmed: 90}
	with := func(change func(f *found)) found {
		f := good
		change(&f)
		return f
	}
	for _, tt := range []struct {
		name string
		seen seen
		f    found
		run  string
		want verdict
		text string // part of why
	}{
		{"a new server, a new host", seen{}, found{}, "run1", create, ""},
		{"a known server, a new host", seen{}, good, "run1", join, ""},
		{"a restarted server, a new host", seen{}, good, "run2", takeOver, ""},
		{"as it was", known, good, "run1", join, ""},
		{"further than it was", known, with(func(f *found) { f.Revision, f.Hard = 200, 200 }), "run1", join, ""},
		{"a new master with all", known, good, "run2", takeOver, ""},
		{"a new master without the last soft writes", known, with(func(f *found) { f.Revision = 95 }), "run2", takeOver, ""},
		{"a restart that must lose nothing, and did", strict, with(func(f *found) { f.Revision = 95 }), "run2", foreign, "rewound"},
		{"a new master without a confirmed hard write", known, with(func(f *found) { f.Hard = 89 }), "run2", foreign, "newest hard revision is 89, this host has seen 90"},
		{"soft writes gone on the same server", known, with(func(f *found) { f.Revision = 99 }), "run1", foreign, "at revision 99"},
		{"empty", known, found{}, "run1", foreign, "it is empty"},
		{"the record gone, the rest there", seen{}, found{Remains: true}, "run1", foreign, "record is missing"},
		{"an older generation", known, with(func(f *found) { f.Generation, f.ID = 1, "g1" }), "run1", foreign, "of generation 1"},
		{"another history", known, with(func(f *found) { f.ID = "x" }), "run1", foreign, "has id x"},
		{"adopted by another host", known, with(func(f *found) { f.Generation, f.ID, f.Revision, f.Hard = 3, "g3", 101, 0 }), "run1", join, ""},
		{"a later generation that is behind", known, with(func(f *found) { f.Generation, f.ID, f.Revision = 3, "g3", 100 }), "run1", foreign, "at revision 100 only"},
		{"damaged", known, with(func(f *found) { f.Damaged = "field x is y" }), "run1", foreign, "field x is y"},
		{"empty, as another host noted, a new host", seen{}, found{Missed: known}, "run1", foreign, "empty: another host has seen generation 2 up to revision 100"},
		{"rewound, as another host noted, a new host", seen{}, with(func(f *found) { f.Missed, f.Hard = known, 80 }), "run1", foreign, "another host has seen 90 confirmed"},
		{"brought back, a new host", seen{}, with(func(f *found) { f.Missed = known }), "run1", join, ""},
		{"adopted since it was noted, a new host", seen{}, with(func(f *found) { f.Generation, f.ID, f.Revision, f.Missed = 3, "g3", 101, known }), "run1", join, ""},
		{"noted by a host that knows more, which is that one's affair", known, with(func(f *found) { f.Missed = seen{Generation: 9, ID: "x"} }), "run1", join, ""},
		{"half a record", known, with(func(f *found) { f.ID = "" }), "run1", foreign, "damaged"},
	} {
		v, text, err := judge(tt.seen, tt.f, tt.run)
		if v != tt.want || err != nil || !strings.Contains(text, tt.text) || (text == "") != (tt.want != foreign) {
			t.Errorf("%s: verdict %d, %q, %v; want %d, %q", tt.name, v, text, err, tt.want, tt.text)
		}
	}
	_, _, err := judge(known, with(func(f *found) { f.Format = 2 }), "run1")
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "format 2, this program knows up to 1") {
		t.Errorf("a newer format: %v", err)
	}
}

// A host notes on a server only what it knows to have been there, and once.
func TestMisses(t *testing.T) {
	known := seen{Generation: 2, ID: "g2", Revision: 100, Hard: 90, Durable: true}
	older := known
	older.Revision = 99
	for _, tt := range []struct {
		name string
		seen seen
		f    found
		want bool
	}{
		{"nothing seen", seen{}, found{}, false},
		{"empty", known, found{}, true},
		{"the record gone, the rest there", known, found{Remains: true}, true},
		{"rewound", known, found{Exists: true, Generation: 2, ID: "g2", Revision: 50}, true},
		{"another history", known, found{Exists: true, Generation: 2, ID: "x", Revision: 50}, false},
		{"an older generation", known, found{Exists: true, Generation: 1, ID: "g1", Revision: 50}, false},
		{"noted", known, found{Missed: known}, false},
		{"less is noted", known, found{Missed: older}, true},
		{"more is noted", older, found{Missed: known}, false},
		{"damaged", known, found{Exists: true, ID: "g2", Damaged: "x"}, false},
	} {
		if got := tt.seen.misses(tt.f); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// A node of a Cluster that does not know its own address names none.
func TestReached(t *testing.T) {
	for _, tt := range []struct{ addr, from, want string }{
		{":7000", "10.0.0.1:7000", "10.0.0.1:7000"},
		{":7001", "[::1]:7000", "[::1]:7001"},
		{"10.0.0.2:7000", "10.0.0.1:7000", "10.0.0.2:7000"},
	} {
		if got := reached(tt.addr, tt.from); got != tt.want {
			t.Errorf("%s at %s: %s, want %s", tt.addr, tt.from, got, tt.want)
		}
	}
}

func TestObserve(t *testing.T) {
	s := seen{}.observe(found{Generation: 1, ID: "a", Revision: 10, Hard: 9, Confirmed: 8}, true)
	if want := (seen{Generation: 1, ID: "a", Revision: 10, Hard: 8, Durable: true}); s != want {
		t.Errorf("at first: %+v, want %+v", s, want)
	}
	s = s.observe(found{Generation: 1, ID: "a", Revision: 7, Confirmed: 3}, false)
	if want := (seen{Generation: 1, ID: "a", Revision: 10, Hard: 8}); s != want {
		t.Errorf("what was seen is forgotten: %+v, want %+v", s, want)
	}
	s = s.observe(found{Generation: 2, ID: "b", Revision: 7}, false)
	if want := (seen{Generation: 2, ID: "b", Revision: 7}); s != want {
		t.Errorf("of a new generation: %+v, want %+v", s, want)
	}
}

// Whatever a server answers, it is parsed or refused.
func FuzzAnswers(f *testing.F) {
	f.Add("OK", "12345678value", "member", int64(7), "5-0", uint8(0))
	f.Add("CONFLICT", "short", "", int64(-1), "x-0", uint8(3))
	f.Add("", "", "1e+17", int64(1<<53), "-0", uint8(9))
	f.Fuzz(func(t *testing.T, status, record, text string, n int64, id string, shape uint8) {
		pool := []any{nil, status, record, text, n, id, []any{}, []any{text, id}, []any{id, []any{"p", record}}, []any{[]any{id, []any{text, record}}}}
		pick := func(i uint8) any { return pool[(int(shape)+int(i))%len(pool)] }
		r, err := parseReply([]any{status, n, n, n, n, []any{pick(0)}, []any{pick(1)}, []any{pick(2)}, []any{pick(3)}}, nil)
		if err != nil {
			return
		}
		q := &store.Query{Records: []string{"k"}, Heads: []string{"l"}, Scans: []store.ScanQuery{{Index: "i"}}, Logs: []store.LogQuery{{Log: "l"}}}
		if a, err := parseAnswer(q, r); err == nil && (len(a.Records) != 1 || len(a.Heads) != 1 || len(a.Scans) != 1 || len(a.Logs) != 1) {
			t.Errorf("%+v is taken for an answer to everything: %+v", r, a)
		}
		c := &commit{b: &backend{keys: keysOf("c")}, u: &store.Union{Reads: map[string]uint64{"k": 1}}}
		c.keys = []string{"", c.b.keys.record("k")}
		r.rest = []any{[]any{pick(4), pick(5)}, []any{pick(6), pick(7)}}
		if a, err := c.fresh(r); err == nil {
			if _, ok := a.Records["k"]; !ok {
				t.Errorf("%+v is taken for a conflict: %+v", r, a)
			}
		}
		if size := len(noticedKeys(record)); size > len(record) {
			t.Errorf("%d keys in a notice of %d bytes", size, len(record))
		}
	})
}
