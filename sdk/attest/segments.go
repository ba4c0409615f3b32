package attest

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// MaxLine is the most bytes an entry's line may have.
const MaxLine = 64 << 10

// Segment is the name of the file that holds entries first to last of a chain,
// below the folder of that chain's name.
func Segment(first, last uint64) string { return fmt.Sprintf("%d-%d.ndjson", first, last) }

// Segments is a chain as far as it is in segment files.
type Segments struct {
	Chain    string
	Files    int
	FirstSeq uint64
	LastSeq  uint64
	LastHash string // 64 hex digits; the first entry in the host's store names it
	// Genesis says that the first entry begins the chain, which needs the name of
	// the trust domain.
	Genesis bool
}

type segment struct {
	name        string
	first, last uint64
}

// VerifySegments checks every segment file below dir: a folder of one chain, or of
// folders of chains. Each file holds the entries that its name says, each entry
// continues the one before, and the files of a chain continue one another without
// gaps. With the trust domain's name, entry 1 has to begin the chain; without it
// (empty) that is not checked. An error is a [*Fault], or the file system's.
func VerifySegments(dir fs.FS, trustDomain string) ([]Segments, error) {
	chains := map[string][]segment{}
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".ndjson" {
			return err
		}
		s, ok := parseSegment(name)
		if !ok {
			return &Fault{Page: name, Cause: "its name is not <first>-<last>.ndjson"}
		}
		chains[path.Dir(name)] = append(chains[path.Dir(name)], s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(chains) == 0 {
		return nil, &Fault{Cause: "there is no segment file, <chain>/<first>-<last>.ndjson"}
	}
	var out []Segments
	for folder, files := range chains {
		slices.SortFunc(files, func(a, b segment) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
		r, err := verifyChain(dir, folder, files, trustDomain)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Segments) int { return cmp.Compare(a.Chain, b.Chain) })
	return out, nil
}

func parseSegment(name string) (s segment, ok bool) {
	base := strings.TrimSuffix(path.Base(name), ".ndjson")
	first, last, found := strings.Cut(base, "-")
	a, err1 := strconv.ParseUint(first, 10, 64)
	b, err2 := strconv.ParseUint(last, 10, 64)
	s = segment{name, a, b}
	return s, found && err1 == nil && err2 == nil && a >= 1 && a <= b && path.Base(name) == Segment(a, b)
}

func verifyChain(dir fs.FS, folder string, files []segment, trustDomain string) (Segments, error) {
	var chain *Chain
	out := Segments{Files: len(files)}
	for _, s := range files {
		if chain != nil && s.first != chain.Seq()+1 {
			return out, &Fault{Page: s.name, Chain: out.Chain, Seq: chain.Seq() + 1, Cause: fmt.Sprintf("is missing or there twice: the file before ends at entry %d", chain.Seq())}
		}
		if err := eachLine(dir, s.name, func(raw []byte) error {
			if chain == nil {
				l, err := parseLine(raw)
				if err != nil {
					return &Fault{Seq: s.first, Cause: err.Error()}
				}
				out.Chain, out.FirstSeq = l.plain(l.service), s.first
				if folder != "." && path.Base(folder) != out.Chain {
					return &Fault{Chain: out.Chain, Seq: s.first, Cause: fmt.Sprintf("belongs to the chain %.64q, its folder is %.64q", out.Chain, path.Base(folder))}
				}
				chain = ChainAfter(out.Chain, s.first-1, [32]byte(must(hex.DecodeString(string(l.prev)))))
				if s.first == 1 && trustDomain != "" {
					chain, out.Genesis = NewChain(trustDomain, out.Chain), true
				}
			}
			if chain.Seq() == s.last {
				return &Fault{Chain: out.Chain, Seq: s.last, Cause: "is to be the last by the file's name, and another follows"}
			}
			return chain.Add(raw)
		}); err != nil {
			var f *Fault
			if errors.As(err, &f) {
				f.Page = s.name
			}
			return out, err
		}
		if chain == nil || chain.Seq() != s.last {
			seq := s.first
			if chain != nil {
				seq = chain.Seq() + 1
			}
			return out, &Fault{Page: s.name, Chain: out.Chain, Seq: seq, Cause: fmt.Sprintf("is missing: the file's name says that it goes to entry %d", s.last)}
		}
	}
	hash := chain.Hash()
	out.LastSeq, out.LastHash = chain.Seq(), hex.EncodeToString(hash[:])
	return out, nil
}

// must is for what was checked when it was parsed.
func must(b []byte, err error) []byte {
	if err != nil {
		panic("attest: " + err.Error())
	}
	return b
}

// eachLine calls fn with each line of a file, which must end with a line break.
func eachLine(dir fs.FS, name string, fn func(raw []byte) error) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, MaxLine+1)
	for {
		raw, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(raw) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return &Fault{Cause: "the last line is cut: it has no line break"}
		case errors.Is(err, bufio.ErrBufferFull):
			return &Fault{Cause: fmt.Sprintf("a line has more than %d bytes", MaxLine)}
		case err != nil:
			return err
		}
		if err := fn(raw[:len(raw)-1]); err != nil {
			return err
		}
	}
}
