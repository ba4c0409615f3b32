package bucket_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/sdk/dona/bucket"
)

func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/buckets.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Unit, Flag string
		Plain      string `json:"fnv1a64"`
		Bucket     uint32
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 11 {
		t.Fatalf("read %d vectors, want at least 11", len(vectors))
	}
	for _, v := range vectors {
		h := fnv.New64a()
		h.Write([]byte(v.Unit + "\x00" + v.Flag))
		if got := fmt.Sprintf("%016x", h.Sum64()); got != v.Plain {
			t.Errorf("(%q, %q): the vector's own FNV is %s, the standard library's %s", v.Unit, v.Flag, v.Plain, got)
		}
		if got := bucket.Bucket(v.Unit, v.Flag); got != v.Bucket {
			t.Errorf("Bucket(%q, %q) = %d, want %d", v.Unit, v.Flag, got, v.Bucket)
		}
		if got := bucket.Prepare(v.Unit).Bucket(v.Flag); got != v.Bucket {
			t.Errorf("Prepare(%q).Bucket(%q) = %d, want %d", v.Unit, v.Flag, got, v.Bucket)
		}
	}
}

func TestCohortsNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit, flag := rapid.String().Draw(t, "unit"), rapid.StringN(1, 20, 128).Draw(t, "flag")
		was := false
		for percent := range uint32(101) {
			in := bucket.In(unit, flag, percent)
			if was && !in {
				t.Fatalf("%q left the cohort of %q at %d %%", unit, flag, percent)
			}
			was = in
		}
		if !was {
			t.Fatalf("%q is not in at 100 %%", unit)
		}
		if bucket.In(unit, flag, 0) {
			t.Fatalf("%q is in at 0 %%", unit)
		}
	})
}

func TestEmptyUnit(t *testing.T) {
	for percent := range uint32(100) {
		if bucket.In("", "use-v2", percent) {
			t.Fatalf("the empty unit is in at %d %%", percent)
		}
	}
	if !bucket.In("", "use-v2", 100) {
		t.Fatal("the empty unit is out at 100 %")
	}
}

// Similarly named flags have independent cohorts: of 200,000 units, two cohorts
// of 10 % share about 1 % of all.
func TestSimilarFlagsAreIndependent(t *testing.T) {
	const units = 200_000
	both, first := 0, 0
	for i := range units {
		unit := fmt.Sprintf("user-%d", i)
		a, b := bucket.In(unit, "use-v1", 10), bucket.In(unit, "use-v2", 10)
		if a {
			first++
		}
		if a && b {
			both++
		}
	}
	if share := float64(both) / units; share < 0.009 || share > 0.011 {
		t.Errorf("two cohorts of 10 %% share %.4f of all units, want 0.009 to 0.011", share)
	}
	if share := float64(first) / units; share < 0.097 || share > 0.103 {
		t.Errorf("a cohort of 10 %% holds %.4f of all units", share)
	}
}

func TestCheckUnit(t *testing.T) {
	for unit, ok := range map[string]bool{
		"": true, "user-1": true, "用户-7": true, "a\x00b": false, "\x00": false,
		strings.Repeat("x", bucket.MaxUnit): true, strings.Repeat("x", bucket.MaxUnit+1): false,
	} {
		if err := bucket.CheckUnit(unit); (err == nil) != ok || err != nil && !errors.Is(err, bucket.ErrUnit) {
			t.Errorf("CheckUnit(%.10q, %d bytes) = %v", unit, len(unit), err)
		}
		u, err := bucket.Parse(unit)
		if (err == nil) != ok || err != nil && !errors.Is(err, bucket.ErrUnit) || ok && u != bucket.Prepare(unit) {
			t.Errorf("Parse(%.10q, %d bytes) = %v, %v", unit, len(unit), u, err)
		}
	}
}

var in bool // keeps the compiler from leaving the call out

func TestNoAllocation(t *testing.T) {
	unit := strings.Repeat("u", 40)
	if n := testing.AllocsPerRun(100, func() { in = bucket.In(unit, "use-v2", 10) }); n != 0 {
		t.Errorf("In allocates %v times", n)
	}
}

func BenchmarkBucket(b *testing.B) {
	var total uint32
	for b.Loop() {
		total += bucket.Bucket("user-12345678", "use-v2")
	}
	_ = total
}

// A prepared key gives the bucket that hashing it gives, whatever unit and key.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.String(), 1, 5).Draw(t, "keys")
		table := bucket.NewTable(keys)
		for _, unit := range rapid.SliceOfN(rapid.String(), 1, 20).Draw(t, "units") {
			u := bucket.Prepare(unit)
			row := table.Row(u)
			for i, key := range keys {
				if got, want := row.Bucket(i), bucket.Bucket(unit, key); got != want {
					t.Fatalf("unit %q key %q: bucket %d, hashed %d", unit, key, got, want)
				}
			}
			limits := rapid.SliceOfN(rapid.Uint32Range(0, bucket.Buckets), 0, len(keys)).Draw(t, "limits")
			from := rapid.IntRange(0, len(keys)-len(limits)).Draw(t, "from")
			want := from
			for want < from+len(limits) && row.Bucket(want) >= limits[want-from] {
				want++
			}
			if got := row.First(from, limits); got != want {
				t.Fatalf("unit %q, limits %v from key %d: the first is %d, want %d", unit, limits, from, got, want)
			}
			if row.Unit() != u {
				t.Fatalf("unit %q: the row has another", unit)
			}
		}
	})
}

func BenchmarkTable(b *testing.B) {
	keys := make([]string, 10)
	for i := range keys {
		keys[i] = fmt.Sprint("new-checkout-", i)
	}
	table := bucket.NewTable(keys)
	var total uint32
	for b.Loop() {
		row := table.Row(bucket.Prepare("user-12345678"))
		for i := range keys {
			total += row.Bucket(i)
		}
	}
	_ = total
}
