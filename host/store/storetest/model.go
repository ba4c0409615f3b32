package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/store"
)

// model is what a store should hold, kept the simplest way.
type model struct {
	records  map[string]store.Record
	indexes  map[string]map[string]uint64
	logs     map[string][]string
	revision uint64 // of the last transaction that wrote
}

func newModel() *model {
	return &model{records: map[string]store.Record{}, indexes: map[string]map[string]uint64{}, logs: map[string][]string{}}
}

func (m *model) clone() *model {
	c := &model{records: maps.Clone(m.records), indexes: map[string]map[string]uint64{}, logs: maps.Clone(m.logs), revision: m.revision}
	for index, members := range m.indexes {
		c.indexes[index] = maps.Clone(members)
	}
	return c
}

func (m *model) scan(index string, from, to uint64, limit int) string {
	var entries []store.Entry
	for member, score := range m.indexes[index] {
		if score >= from && score <= to {
			entries = append(entries, store.Entry{Member: member, Score: score})
		}
	}
	slices.SortFunc(entries, store.CompareEntries)
	if limit > 0 && len(entries) > limit {
		entries = entries[:limit]
	}
	return fmt.Sprint(entries)
}

func (m *model) readLog(log string, from uint64, limit int) string {
	text := ""
	for i, payload := range m.logs[log] {
		if seq := uint64(i + 1); seq >= from && (limit == 0 || seq < from+uint64(limit)) {
			text += fmt.Sprintf("%d=%s ", seq, payload)
		}
	}
	return text
}

func logText(entries []store.LogEntry) string {
	text := ""
	for _, e := range entries {
		text += fmt.Sprintf("%d=%s ", e.Seq, e.Payload)
	}
	return text
}

var errAbort = errors.New("the transaction decided against it")

// action is one step inside a transaction.
type action struct {
	Kind     string
	Name     string // key, index or log
	Member   string
	Value    string
	From, To uint64
	Limit    int
}

func drawActions(t *rapid.T, kinds []string) []action {
	name := rapid.SampledFrom([]string{"a", "a/b", "b", "\x00", "ab"})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) action {
		return action{
			Kind:   rapid.SampledFrom(kinds).Draw(t, "kind"),
			Name:   name.Draw(t, "name"),
			Member: rapid.SampledFrom([]string{"x", "y", "xx", "\xff"}).Draw(t, "member"),
			Value:  rapid.StringN(0, 8, 16).Draw(t, "value"),
			From:   rapid.Uint64Range(0, 6).Draw(t, "from"),
			To:     rapid.Uint64Range(0, 6).Draw(t, "to"),
			Limit:  rapid.IntRange(0, 3).Draw(t, "limit"),
		}
	}), 0, 8).Draw(t, "actions")
}

var reads = []string{"get", "many", "scan", "readlog"}
var writes = append([]string{"put", "delete", "index", "unindex", "append"}, reads...)

// read does a reading action on both and compares.
func (a action) read(tx store.ReadTx, m *model) error {
	var got, want string
	switch a.Kind {
	case "get":
		r, err := tx.Get(a.Name)
		if err != nil {
			return err
		}
		w := m.records[a.Name]
		got, want = fmt.Sprintf("%q %d", r.Value, r.Version), fmt.Sprintf("%q %d", w.Value, w.Version)
	case "many":
		r, err := tx.GetMany(a.Name, "b")
		if err != nil {
			return err
		}
		got, want = fmt.Sprint(r), fmt.Sprint([]store.Record{m.records[a.Name], m.records["b"]})
	case "scan":
		entries, err := tx.Scan(a.Name, a.From, a.To, a.Limit)
		if err != nil {
			return err
		}
		got, want = fmt.Sprint(entries), m.scan(a.Name, a.From, a.To, a.Limit)
	case "readlog":
		entries, err := tx.ReadLog(a.Name, max(a.From, 1), a.Limit)
		if err != nil {
			return err
		}
		got, want = logText(entries), m.readLog(a.Name, max(a.From, 1), a.Limit)
	}
	if got != want {
		return fmt.Errorf("%+v: got %s, want %s", a, got, want)
	}
	return nil
}

// write does an action on both.
func (a action) write(tx store.Tx, m *model) error {
	switch a.Kind {
	case "put":
		m.records[a.Name] = store.Record{Value: []byte(a.Value), Version: tx.Revision()}
		return tx.Put(a.Name, []byte(a.Value))
	case "delete":
		delete(m.records, a.Name)
		return tx.Delete(a.Name)
	case "index":
		if m.indexes[a.Name] == nil {
			m.indexes[a.Name] = map[string]uint64{}
		}
		m.indexes[a.Name][a.Member] = a.From
		return tx.IndexPut(a.Name, a.Member, a.From)
	case "unindex":
		delete(m.indexes[a.Name], a.Member)
		return tx.IndexDelete(a.Name, a.Member)
	case "append":
		m.logs[a.Name] = append(m.logs[a.Name][:len(m.logs[a.Name]):len(m.logs[a.Name])], a.Value)
		seq, err := tx.Append(a.Name, []byte(a.Value))
		if err == nil && seq != uint64(len(m.logs[a.Name])) {
			return fmt.Errorf("append gives %d, want %d", seq, len(m.logs[a.Name]))
		}
		return err
	}
	return a.read(tx, m)
}

func wrote(actions []action) bool {
	return slices.ContainsFunc(actions, func(a action) bool { return !slices.Contains(reads, a.Kind) })
}

// runModel runs random transactions one after another on the store and on the
// model. Each run of rapid continues on a fresh store.
func runModel(t *testing.T, open Factory) {
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t)
		defer s.Close()
		now := newModel()
		rt.Repeat(map[string]func(*rapid.T){
			"update": func(rt *rapid.T) {
				actions := drawActions(rt, writes)
				abort := rapid.IntRange(0, 4).Draw(rt, "abort") == 0
				d := rapid.SampledFrom([]store.Durability{store.Soft, store.Hard}).Draw(rt, "durability")
				var next *model
				err := s.Update(t.Context(), d, func(tx store.Tx) error {
					next = now.clone()
					for _, a := range actions {
						if err := a.write(tx, next); err != nil {
							return err
						}
					}
					if tx.Revision() <= now.revision {
						return fmt.Errorf("revision %d after %d", tx.Revision(), now.revision)
					}
					if wrote(actions) { // one that does not takes no revision
						next.revision = tx.Revision()
					}
					if abort {
						return errAbort
					}
					return nil
				})
				switch {
				case abort && !errors.Is(err, errAbort) || !abort && err != nil:
					rt.Fatal(err)
				case !abort:
					now = next
				}
			},
			"view": func(rt *rapid.T) {
				actions := drawActions(rt, reads)
				err := s.View(t.Context(), func(tx store.ReadTx) error {
					for _, a := range actions {
						if err := a.read(tx, now); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					rt.Fatal(err)
				}
			},
		})
	})
}
