package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

const (
	defaultTokenTTL = time.Hour

	tokenPrefix = "dona"
	tokenIndex  = "token"
	maxTokenLen = 128
)

func tokenKey(id string) string { return "token/" + id }

// A TokenRequest says what a token is to be.
type TokenRequest struct {
	Service, Path string        // exactly one: the identity that it grants
	TTL           time.Duration // 0 = an hour
	Uses          uint32        // 0 = 1
}

// A Token grants one identity for a while. Its text is told once: the store has a hash
// of it.
type Token struct {
	Text    string
	ID      string
	Expires time.Time
}

// CreateToken makes a token, in one durable transaction with its audit entry. Refusals:
// Invalid; Exhausted at the limit.
func (i *Issuer) CreateToken(ctx context.Context, actor string, req TokenRequest) (*Token, error) {
	id, err := i.named(req.Service, req.Path)
	if err != nil {
		return nil, err
	}
	ttl, uses := req.TTL, req.Uses
	if ttl == 0 {
		ttl = defaultTokenTTL
	}
	if ttl < time.Second || ttl > limits.TokenTTL {
		return nil, refusal.Field("ttl_seconds", "is %d: allowed are 1 to %d", int64(ttl/time.Second), int64(limits.TokenTTL/time.Second))
	}
	if uses == 0 {
		uses = 1
	}
	if uses > limits.TokenUses {
		return nil, refusal.Field("uses", "is %d: allowed are at most %d", uses, limits.TokenUses)
	}
	var raw [8]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, err
	}
	secret := rand.Text()
	token := &Token{ID: hex.EncodeToString(raw[:])}
	token.Text = tokenPrefix + "_" + token.ID + "_" + secret
	hash := sha256.Sum256([]byte(secret))
	err = i.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		now := tx.Now()
		if err := i.dropExpired(tx, now); err != nil {
			return err
		}
		there, err := tx.Scan(tokenIndex, 0, store.MaxScore, limits.Tokens)
		if err != nil {
			return err
		}
		if len(there) >= limits.Tokens {
			return refusal.New(refusal.Exhausted, "there are %d tokens: allowed are at most %d; revoke those that are not needed", len(there), limits.Tokens)
		}
		token.Expires = now.Add(ttl).Truncate(time.Millisecond) // as it is kept, and not a moment later
		if err := store.Save(tx, tokenKey(token.ID), &statev1.Token{
			Id: token.ID, SpiffeId: id.String(), Hash: hash[:], CreatedMs: now.UnixMilli(), ExpiresMs: token.Expires.UnixMilli(), Uses: uses,
		}); err != nil {
			return err
		}
		if err := tx.IndexPut(tokenIndex, token.ID, uint64(token.Expires.UnixMilli())); err != nil {
			return err
		}
		return i.o.Audit.Append(tx, audit.HostChain, audit.Entry{Kind: "token.create", Actor: actor, Detail: map[string]string{
			"token_id": token.ID, "uses": strconv.FormatUint(uint64(uses), 10), "spiffe_id": id.String(),
			"not_after_ms": strconv.FormatInt(token.Expires.UnixMilli(), 10),
		}})
	})
	if err != nil {
		return nil, err
	}
	return token, nil
}

// dropExpired removes tokens that have run out, some at a time.
func (i *Issuer) dropExpired(tx store.Tx, now time.Time) error {
	past, err := tx.Scan(tokenIndex, 0, uint64(max(now.UnixMilli(), 0)), 100)
	if err != nil {
		return err
	}
	for _, e := range past {
		if err := removeToken(tx, e.Member); err != nil {
			return err
		}
	}
	return nil
}

func removeToken(tx store.Tx, id string) error {
	if err := tx.Delete(tokenKey(id)); err != nil {
		return err
	}
	return tx.IndexDelete(tokenIndex, id)
}

// RevokeToken takes a token away, with its audit entry. What was issued for it stays
// valid until it expires. Refusals: Invalid; NotFound.
func (i *Issuer) RevokeToken(ctx context.Context, actor, id string) error {
	if b, err := hex.DecodeString(id); err != nil || len(b) != 8 || strings.ToLower(id) != id {
		return refusal.Field("token_id", "is %s: allowed are 16 hex digits, as they were told with the token", limits.QuoteOrEmpty(id))
	}
	return i.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		version, err := store.Load(tx, tokenKey(id), &statev1.Token{})
		if err != nil {
			return err
		}
		if version == 0 {
			return refusal.New(refusal.NotFound, "there is no token %s: it is used up, expired or revoked already", id)
		}
		if err := removeToken(tx, id); err != nil {
			return err
		}
		return i.o.Audit.Append(tx, audit.HostChain, audit.Entry{Kind: "token.revoke", Actor: actor, Detail: map[string]string{"token_id": id}})
	})
}

// errToken is the one answer to a token that does not do, whatever the reason.
var errToken = refusal.New(refusal.Denied, "this token does not grant this identity: it is wrong, used up, expired, revoked or for another one")

// spelled takes a token's text apart; the secret of one that is no token matches none.
func spelled(text string) (id string, secret [sha256.Size]byte) {
	parts := strings.Split(text, "_")
	if len(text) > maxTokenLen || len(parts) != 3 || parts[0] != tokenPrefix {
		return "none", secret
	}
	if b, err := hex.DecodeString(parts[1]); err != nil || len(b) != 8 {
		return "none", secret
	}
	return parts[1], sha256.Sum256([]byte(parts[2]))
}

// granted returns what a token grants, or errToken. want is empty when the request
// names no identity.
func (i *Issuer) granted(tx store.ReadTx, text, want string) (*statev1.Token, ID, error) {
	id, secret := spelled(text)
	token := &statev1.Token{Hash: make([]byte, sha256.Size)}
	version, err := store.Load(tx, tokenKey(id), token)
	if err != nil {
		return nil, ID{}, err
	}
	ok := subtle.ConstantTimeCompare(secret[:], token.GetHash()) == 1
	if !ok || version == 0 || token.GetUses() == 0 || tx.Now().UnixMilli() >= token.GetExpiresMs() || want != "" && want != token.GetSpiffeId() {
		return nil, ID{}, errToken
	}
	whose, err := ParseID(token.GetSpiffeId())
	if err != nil || whose.TrustDomain != i.o.TrustDomain {
		return nil, ID{}, errToken // of hosts with another trust domain
	}
	return token, whose, nil
}

// spend takes one use off a token.
func spend(tx store.Tx, token *statev1.Token) error {
	if token.Uses--; token.Uses == 0 {
		return removeToken(tx, token.GetId())
	}
	return store.Save(tx, tokenKey(token.GetId()), token)
}
