package pool

import (
	"slices"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

// maxWants bounds how many kinds of proxies extractions wait for at once, of those that
// prefer one upstream.
const maxWants = 8

// takeMore has what is short taken from workers for a while.
func (x *extraction) takeMore(tx store.Tx) error {
	if len(x.searched) == 0 {
		return nil
	}
	key := shortfallKey(x.searched[0])
	have := new(statev1.Shortfall)
	if err := loadSoft(tx, key, have); err != nil {
		return err
	}
	now := tx.Now()
	next := &statev1.Want{
		Count: uint32(x.short), UntilMs: now.Add(shortfallFor).UnixMilli(),
		Upstreams: x.searched, Protocol: x.req.Protocol, MinRemainingMs: x.req.MinRemaining.AsDuration().Milliseconds(),
	}
	wants := slices.DeleteFunc(have.Wants, func(o *statev1.Want) bool {
		same := o.Protocol == next.Protocol && o.MinRemainingMs == next.MinRemainingMs && slices.Equal(o.Upstreams, next.Upstreams)
		if same && now.UnixMilli() < o.UntilMs {
			next.Count = max(next.Count, o.Count)
		}
		return same || o.UntilMs <= now.UnixMilli()
	})
	wants = append(wants, next) // the newest comes last
	return store.Save(tx, key, &statev1.Shortfall{Wants: wants[max(len(wants)-maxWants, 0):]})
}

// want is what extractions of one kind lack, while it is being looked for.
type want struct {
	*statev1.Want
	now   int64
	left  int
	owned map[string]map[string]bool // proxies of workers that would do, by upstream
}

// loadWants reads what extractions wait for.
func loadWants(tx store.ReadTx, names []string, now int64) (wants []*want, err error) {
	for _, name := range names {
		short := new(statev1.Shortfall)
		if err := loadSoft(tx, shortfallKey(name), short); err != nil {
			return nil, err
		}
		for _, w := range short.Wants {
			if now < w.UntilMs {
				wants = append(wants, &want{Want: w, now: now, left: int(w.Count), owned: map[string]map[string]bool{}})
			}
		}
	}
	return wants, nil
}

func (w *want) fits(p *statev1.ProxyState) bool {
	return p.State == ownership.Available && p.UsableMs > w.now+w.MinRemainingMs &&
		(w.Protocol == controlplanev1.Proxy_PROTOCOL_UNSPECIFIED || w.Protocol == p.Protocol)
}

// keepWanted keeps free proxies of an upstream for wants, those that last longest, and
// counts those that come free for them.
func keepWanted(u *ownership.Upstream, proxies []*statev1.ProxyState, draining map[string]bool, workers map[string]*ownership.Worker, wants []*want) {
	free := map[string]bool{}
	for _, id := range u.Free {
		free[id] = true
	}
	kept := map[string]bool{}
	for _, p := range slices.Backward(proxies) {
		for _, w := range wants {
			if !slices.Contains(w.Upstreams, u.Name) || !w.fits(p) {
				continue
			}
			owner := workers[p.Owner]
			if comes := free[p.Id] || draining[p.Id] || owner != nil && owner.Leaving; comes && w.left > 0 {
				w.left--
				u.Keep++
				kept[p.Id] = true
				break
			} else if !comes && owner != nil && !owner.Silent {
				if w.owned[u.Name] == nil {
					w.owned[u.Name] = map[string]bool{}
				}
				w.owned[u.Name][p.Id] = true
			}
		}
	}
	// What comes first is given to workers.
	slices.SortStableFunc(u.Free, func(a, b string) int { return rank(kept[a]) - rank(kept[b]) })
}

func rank(kept bool) int {
	if kept {
		return 1
	}
	return 0
}

// takeFrom has what wants still lack drained, of the upstreams that they prefer.
func takeFrom(upstreams []ownership.Upstream, wants []*want) {
	for _, w := range wants {
		for _, name := range w.Upstreams {
			n := min(w.left, len(w.owned[name]))
			if n == 0 {
				continue
			}
			i := slices.IndexFunc(upstreams, func(u ownership.Upstream) bool { return u.Name == name })
			upstreams[i].Lacks = append(upstreams[i].Lacks, ownership.Lack{Count: n, Of: w.owned[name]})
			upstreams[i].Keep += n
			w.left -= n
		}
	}
}
