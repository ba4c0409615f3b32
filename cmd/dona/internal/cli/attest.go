package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/attest"
)

func (a *app) attestCommand() *cobra.Command {
	return group("attest", "Fetch signed reports of what happened, and verify them without a host",
		a.attestFetchCommand(), a.attestVerifyCommand(), a.attestSegmentsCommand())
}

func (a *app) attestFetchCommand() *cobra.Command {
	var dir, from, to string
	request := &donav1.AttestationRequest{}
	cmd := &cobra.Command{
		Use:   "fetch SERVICE --out DIR",
		Short: "Write signed reports of a service's audit log to a folder",
		Long: `Write signed reports of a service's audit log, or of the chains @host and @pool, to a
folder, which must not be there yet. As many reports are fetched as the range needs.
Each is asked for with a nonce that nobody could know, so that none can be an older
one. Nothing is verified but that it is the answer to this question: that is what
dona attest verify is for, with a key that comes from somewhere else than the host.

  dona attest fetch checkout --out june --from 2026-06-01T00:00:00Z --to 2026-06-30T23:59:59Z
  dona attest verify june --key attestation.pem`,
		Args: positional("SERVICE" + anyForm),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			request.Service = args[0]
			if err := limits.Service(request.Service); err != nil && request.Service != attest.HostChain && request.Service != attest.PoolChain {
				return usage("SERVICE %v; or one of %s, %s", err, attest.HostChain, attest.PoolChain)
			}
			if dir == "" {
				return usage("--out is needed: the folder to write to, which must not be there yet")
			}
			if _, err := os.Lstat(dir); err == nil {
				return usage("--out %s exists: name another folder, or move it away", limits.Quote(dir))
			}
			if request.FromUnix, err = instant("--from", from); err != nil {
				return err
			}
			if request.ToUnix, err = instant("--to", to); err != nil {
				return err
			}
			if from != "" && request.FromSeq != 0 {
				return usage("--from and --from-seq are two beginnings: name one")
			}
			request.Nonce = rand.Text()
			return a.withHost(cmd.Context(), func(c *connection) error { return a.fetchAttestation(c, request, dir) })
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&dir, "out", "", "folder to write to, which must not be there yet")
	fl.StringVar(&from, "from", "", "only entries from this time on, as 2026-06-01T00:00:00Z or unix seconds")
	fl.StringVar(&to, "to", "", "only entries up to this time")
	fl.Uint64Var(&request.FromSeq, "from-seq", 0, "only entries from this number on")
	fl.Uint32Var(&request.MaxEntries, "max-entries", 0, "entries of one report (default as many as the host gives)")
	return cmd
}

// instant reads a time as unix seconds; empty is 0.
func instant(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		return n, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.Unix() <= 0 {
		return 0, usage("%s is %s: allowed are a time as 2026-06-01T00:00:00Z, and unix seconds", flag, limits.Quote(text))
	}
	return at.Unix(), nil
}

// fetched is what a fetch has brought.
type fetched struct {
	Dir      string `json:"dir"`
	Service  string `json:"service"`
	Reports  int    `json:"reports"`
	Entries  int    `json:"entries"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	Nonce    string `json:"nonce"`
	KeyID    string `json:"key_id"`
}

// fetchAttestation asks until there is no more, and puts the folder in its place
// when it is whole.
func (a *app) fetchAttestation(c *connection, request *donav1.AttestationRequest, dir string) error {
	cannot := func(err error) error {
		return failed("OUTPUT", "the reports cannot be written: %v", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), "."+filepath.Base(filepath.Clean(dir))+".*") // 0700
	if err != nil {
		return cannot(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // is not there any more when all went well
	got := fetched{Dir: dir, Service: request.Service, Nonce: request.Nonce}
	for {
		reply, err := call(c, "attestation of "+request.Service, c.control.GetAttestation, request)
		if err != nil {
			return err
		}
		got.Reports++
		r, err := answers(reply, request)
		if err != nil {
			return err
		}
		report, signature := attest.PageName(got.Reports)
		if err := errors.Join(
			os.WriteFile(filepath.Join(tmp, report), reply.GetReportJson(), 0o600),
			os.WriteFile(filepath.Join(tmp, signature), reply.GetSignature(), 0o600),
			os.WriteFile(filepath.Join(tmp, "signer.pem"), reply.GetSignerPublicKeyPem(), 0o600),
		); err != nil {
			return cannot(err)
		}
		if got.FirstSeq == 0 {
			got.FirstSeq = r.FirstSeq
		}
		got.Entries, got.LastSeq, got.KeyID = got.Entries+len(r.Entries), max(got.LastSeq, r.LastSeq), r.KeyID
		if r.NextSeq == 0 {
			break
		}
		request.FromUnix, request.FromSeq = 0, r.NextSeq
	}
	if err := os.WriteFile(filepath.Join(tmp, attest.NonceFile), []byte(request.Nonce+"\n"), 0o600); err != nil {
		return cannot(err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return cannot(err)
	}
	if a.json {
		return a.object(got)
	}
	what := "no entry"
	if got.Entries > 0 {
		what = fmt.Sprintf("entries %d to %d", got.FirstSeq, got.LastSeq)
	}
	return a.lines(fmt.Sprintf("wrote %s: %s of %s, in reports: %d, not verified yet", dir, what, got.Service, got.Reports),
		fmt.Sprintf("next: dona attest verify %s --key PEM", dir))
}

// answers checks that a reply is the answer to what was asked.
func answers(reply *donav1.AttestationReply, request *donav1.AttestationRequest) (*attest.Report, error) {
	r, err := attest.Parse(reply.GetReportJson())
	if err != nil {
		return nil, unverified(err)
	}
	bad := func(format string, args ...any) (*attest.Report, error) {
		return nil, unverified(&attest.Fault{Chain: r.Service, Cause: fmt.Sprintf(format, args...)})
	}
	switch {
	case r.Service != request.Service:
		return bad("the report is not about %s", request.Service)
	case r.Nonce != request.Nonce:
		return bad("the report's nonce is not the one that it was asked for with: it is an older one")
	case request.FromSeq != 0 && len(r.Entries) > 0 && r.FirstSeq != request.FromSeq, r.NextSeq != 0 && r.NextSeq <= request.FromSeq:
		return bad("the report begins at entry %d and goes on at %d, asked was from %d", r.FirstSeq, r.NextSeq, request.FromSeq)
	}
	return r, nil
}

func (a *app) attestVerifyCommand() *cobra.Command {
	var keyFile, nonce string
	var memory memoryFlags
	var allowGap bool
	cmd := &cobra.Command{
		Use:   "verify DIR --key PEM",
		Short: "Verify fetched reports; needs no host",
		Long: `Verify the reports of a folder. It needs no host. Checked are, in this order: the
signature with a key that is pinned, the layout, the counts, that no number is
missing, that each entry names the hash of the one before, each hash, and the head;
then that they continue what was seen before, and that no call was allowed into a
region that its rule does not allow. What was not provable is said.

The key is the public half that the host wrote at its first start, attestation.pem in
its data directory. It is remembered, so it has to be named once for a trust domain;
the newest entry seen of each chain is remembered, too.

It exits with 5 when something does not hold, and names the first bad entry.`,
		Args: positional("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pages, said, err := attest.ReadPages(os.DirFS(args[0]))
			if err != nil {
				return configuration("DIR %s cannot be read: %v; dona attest fetch writes such a folder", limits.Quote(args[0]), err)
			}
			o := attest.Options{Nonce: said, AllowGap: allowGap}
			if cmd.Flags().Changed("nonce") {
				o.Nonce = &nonce
			}
			m, err := memory.open()
			if err != nil {
				return err
			}
			r, err := verifyPages(pages, o, keyFile, m)
			if err != nil {
				return err
			}
			if a.json {
				return a.object(verifiedJSON(r))
			}
			return a.lines(a.style().Attestation(r)...)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&keyFile, "key", "", "file with the signer's public key in PEM (default the one remembered for the trust domain)")
	fl.StringVar(&nonce, "nonce", "", "that the reports must have (default the one in DIR that fetch has written)")
	fl.BoolVar(&allowGap, "allow-gap", false, "accept reports that begin after what was seen before, or after the beginning")
	memory.add(cmd)
	return cmd
}

// memoryFlags say where is remembered what was seen before.
type memoryFlags struct {
	file string
	none bool
}

func (f *memoryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "memory", "", "file of the heads and keys seen before (default attest.json in the user's configuration directory)")
	cmd.Flags().BoolVar(&f.none, "no-memory", false, "neither use nor change what is remembered")
}

// open returns nil when nothing is to be remembered.
func (f *memoryFlags) open() (*attest.Memory, error) {
	if f.none {
		if f.file != "" {
			return nil, usage("--memory and --no-memory say opposite things: name one")
		}
		return nil, nil
	}
	file := f.file
	if file == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return nil, configuration("there is no place to remember what was seen: %v; name a file with --memory, or say --no-memory", err)
		}
		file = filepath.Join(dir, "dona", "attest.json")
	}
	m, err := attest.OpenMemory(file)
	if err != nil {
		return nil, configuration("--memory: %v", err)
	}
	return m, nil
}

// verifyPages verifies with the key of a file or the remembered one, and remembers.
func verifyPages(pages []attest.Page, o attest.Options, keyFile string, m *attest.Memory) (*attest.Result, error) {
	// Whose reports they say to be only chooses what they are held against.
	r, err := attest.Parse(pages[0].Report)
	if m != nil && err == nil {
		o.Key, o.Seen = m.Key(r.TrustDomain), m.Seen(r.TrustDomain, r.Service)
	}
	if keyFile != "" {
		if o.Key, err = readKey(keyFile); err != nil {
			return nil, err
		}
	}
	if o.Key == nil {
		return nil, usage("--key is needed: the signer's public key in PEM, from whom you trust; none is remembered for this trust domain, and the one beside the reports proves nothing")
	}
	result, err := attest.Verify(pages, o)
	if err != nil {
		return nil, unverified(elsewhere(pages, o, err))
	}
	if m != nil {
		if err := m.Remember(result, o.Key); err != nil {
			return nil, failed("OUTPUT", "verified, but what was seen cannot be remembered: %v; name another file with --memory, or say --no-memory", err)
		}
	}
	return result, nil
}

// elsewhere adds what to do when reports fail by what was seen before alone: a host of
// the same names that began anew, as one with --dev does in another directory, looks like
// a history that was rewritten.
func elsewhere(pages []attest.Page, o attest.Options, err error) error {
	if o.Seen == nil {
		return err
	}
	o.Seen = nil
	if _, alone := attest.Verify(pages, o); alone != nil {
		return err
	}
	return fmt.Errorf("%w; by themselves they verify: if they are of another host with these names, or of one that was made anew, give it a memory of its own with --memory FILE", err)
}

func readKey(file string) (ed25519.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, configuration("--key: %v", err)
	}
	key, err := attest.ParseKey(text)
	if err != nil {
		return nil, configuration("--key %s %v", limits.Quote(file), err)
	}
	return key, nil
}

// verifiedJSON is what a verification shows, for scripts.
func verifiedJSON(r *attest.Result) any {
	type decisions struct {
		Decision       string `json:"decision"`
		Region         string `json:"region"`
		AllowedRegions string `json:"allowed_regions"`
		RuleID         string `json:"rule_id"`
		Count          uint64 `json:"count"`
	}
	list := []decisions{}
	for _, d := range r.Decisions {
		list = append(list, decisions(d))
	}
	return struct {
		Verified    bool          `json:"verified"`
		TrustDomain string        `json:"trust_domain"`
		Service     string        `json:"service"`
		IssuedMS    int64         `json:"issued_ms"`
		KeyID       string        `json:"key_id"`
		Reports     int           `json:"reports"`
		FirstSeq    uint64        `json:"first_seq"`
		LastSeq     uint64        `json:"last_seq"`
		Entries     uint64        `json:"entries"`
		Gaps        uint64        `json:"gaps"`
		Head        attest.Head   `json:"head"`
		Older       *attest.Older `json:"older,omitempty"`
		Decisions   []decisions   `json:"decisions"`
		Checked     []string      `json:"checked"`
		NotProvable []string      `json:"not_provable"`
	}{true, r.TrustDomain, r.Service, r.IssuedMS, r.KeyID, r.Pages, r.FirstSeq, r.LastSeq, r.Entries, r.Gaps, r.Head, r.Older, list, r.Checked, r.NotProvable}
}

func (a *app) attestSegmentsCommand() *cobra.Command {
	var domain string
	cmd := &cobra.Command{
		Use:   "verify-segments DIR",
		Short: "Verify the files that older entries have moved to; needs no host",
		Long: `Verify segment files, DIR/<chain>/<first>-<last>.ndjson, where a host keeps entries
that are older than it keeps them in its store. Each file has to hold what its name
says, each entry to continue the one before, and the files of a chain one another.
The hash shown last is what the first entry still in the host's store names, and what
a report says of them ("older"). They are not signed by themselves: that hash in a
signed report is what vouches for them.

It exits with 5 when something does not hold, and names the first bad entry.`,
		Args: positional("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if info, err := os.Stat(args[0]); err != nil || !info.IsDir() {
				return configuration("DIR %s is not a folder that can be read", limits.Quote(args[0]))
			}
			chains, err := attest.VerifySegments(os.DirFS(args[0]), domain)
			if err != nil {
				var f *attest.Fault
				if errors.As(err, &f) {
					return unverified(err)
				}
				return configuration("DIR %s cannot be read: %v", limits.Quote(args[0]), err)
			}
			if a.json {
				return a.object(map[string]any{"verified": true, "chains": segmentsJSON(chains)})
			}
			return a.lines(a.style().Segments(chains)...)
		},
	}
	cmd.Flags().StringVar(&domain, "trust-domain", "", "the host's trust domain: with it, entry 1 is checked to begin its chain")
	return cmd
}

func segmentsJSON(chains []attest.Segments) (out []map[string]any) {
	for _, c := range chains {
		out = append(out, map[string]any{"chain": c.Chain, "files": c.Files, "first_seq": c.FirstSeq, "last_seq": c.LastSeq, "last_hash": c.LastHash, "begins_chain": c.Genesis})
	}
	return out
}

// unverified is the failure of a verification.
func unverified(err error) error {
	f := &failure{code: ExitUnverified, kind: "UNVERIFIED", msg: "not verified: " + err.Error()}
	var fault *attest.Fault
	if errors.As(err, &fault) {
		f.seq, f.cause = fault.Seq, fault.Cause
	}
	return f
}
