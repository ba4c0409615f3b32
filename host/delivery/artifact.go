package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

func checkArtifact(req *donav1.RegisterArtifactRequest) error {
	for _, f := range []struct {
		field string
		err   error
	}{
		{"service", limits.Service(req.GetService())},
		{"version", limits.Version(req.GetVersion())},
		{"uri", limits.Text(req.GetUri(), limits.URLLen)},
		{"digest", limits.Digest(req.GetDigest())},
	} {
		if err := refusal.Check(f.field, f.err); err != nil {
			return err
		}
	}
	if hasUserInfo(req.GetUri()) {
		// Artifacts are listed and never deleted: no place for a password.
		return refusal.Field("uri", "has user info: leave out the name and password, they would stay for ever")
	}
	if n := len(req.GetLabels()); n > limits.Labels {
		return refusal.Field("labels", "has %d entries: allowed are at most %d", n, limits.Labels)
	}
	for key, value := range req.GetLabels() {
		if err := refusal.Check(fmt.Sprintf("labels[%s]", limits.Quote(key)), limits.Label(key, value)); err != nil {
			return err
		}
	}
	return nil
}

// hasUserInfo reports whether a URI has something before an @ in its authority,
// also when the rest of it does not parse.
func hasUserInfo(uri string) bool {
	_, rest, found := strings.Cut(uri, "//")
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		rest = rest[:at]
	}
	return found && strings.Contains(rest, "@")
}

// RegisterArtifact keeps a build for good, in one durable transaction with its
// audit entry, and makes the service when it is new. The same version with the
// same digest again changes nothing and returns what is there. Refusals: Invalid;
// AlreadyExists when the version has another digest; Exhausted at a limit.
func (c *Controller) RegisterArtifact(ctx context.Context, actor string, req *donav1.RegisterArtifactRequest) (*donav1.Artifact, error) {
	if err := checkArtifact(req); err != nil {
		return nil, err
	}
	service, digest := req.GetService(), strings.ToLower(req.GetDigest())
	var artifact *donav1.Artifact
	err := c.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		var have statev1.ArtifactState
		key := artifactKey(service, req.GetVersion())
		version, err := store.Load(tx, key, &have)
		if err != nil {
			return err
		}
		if version != 0 {
			artifact = have.GetArtifact()
			if artifact.GetDigest() != digest {
				return &refusal.Error{Kind: refusal.AlreadyExists, Field: "digest", Text: fmt.Sprintf(
					"is another one than version %s of service %s has, which never changes: register it as another version", limits.Quote(req.GetVersion()), service)}
			}
			return nil
		}
		if err := c.o.Plane.Ensure(tx, service); err != nil {
			return err
		}
		now := tx.Now()
		artifact = &donav1.Artifact{
			Service: service, Version: req.GetVersion(), Uri: req.GetUri(), Digest: digest, Labels: req.GetLabels(),
			Id: artifactID(service, req.GetVersion()), CreatedUnix: now.Unix(),
		}
		if _, err := c.count(tx, service, func(t *statev1.Delivery) error {
			if t.Artifacts >= limits.ArtifactsPerService {
				return refusal.New(refusal.Exhausted, "service %s has %d artifacts: allowed are at most %d", service, t.Artifacts, limits.ArtifactsPerService)
			}
			t.Artifacts++
			return nil
		}); err != nil {
			return err
		}
		if err := store.Save(tx, key, &statev1.ArtifactState{Artifact: artifact, CreatedMs: now.UnixMilli()}); err != nil {
			return err
		}
		if err := tx.IndexPut(artifactIndex(service), artifact.Version, uint64(now.UnixMilli())); err != nil {
			return err
		}
		return c.o.Audit.Append(tx, service, audit.Entry{Kind: "artifact.register", Actor: actor, Detail: map[string]string{
			"id": artifact.Id, "version": artifact.Version, "digest": artifact.Digest,
		}})
	})
	if err != nil {
		return nil, err
	}
	return artifact, nil
}

// count changes the service's totals.
func (c *Controller) count(tx store.Tx, service string, change func(*statev1.Delivery) error) (*statev1.Delivery, error) {
	var totals statev1.Delivery
	if _, err := store.Load(tx, totalsKey(service), &totals); err != nil {
		return nil, err
	}
	if err := change(&totals); err != nil {
		return nil, err
	}
	return &totals, store.Save(tx, totalsKey(service), &totals)
}

func checkRelease(req *donav1.CreateReleaseRequest) (version string, err error) {
	if err := refusal.Check("service", limits.Service(req.GetService())); err != nil {
		return "", err
	}
	service, version, err := parseArtifactID(req.GetArtifactId())
	if err := refusal.Check("artifact_id", err); err != nil {
		return "", err
	}
	if service != req.GetService() {
		return "", refusal.Field("artifact_id", "is %s, of another service than %s", limits.Brief(req.GetArtifactId()), limits.Brief(req.GetService()))
	}
	if err := refusal.Check("variant", limits.Name(req.GetVariant())); err != nil {
		return "", err
	}
	size := 0
	for key, value := range req.GetConfig() {
		at := fmt.Sprintf("config[%s]", limits.Quote(key))
		if key == "" {
			return "", refusal.Field(at, "has an empty key: allowed are 1 to %d bytes", limits.ReleaseConfigKeyLen)
		}
		if err := refusal.Check(at, limits.Text(key, limits.ReleaseConfigKeyLen)); err != nil {
			return "", err
		}
		if strings.Contains(value, "\x00") {
			return "", refusal.Field(at, "has a zero byte: allowed is text")
		}
		size += len(key) + len(value)
	}
	if size > limits.ReleaseConfigLen {
		return "", refusal.Field("config", "has %d bytes of keys and values: allowed are at most %d", size, limits.ReleaseConfigLen)
	}
	return version, nil
}

// CreateRelease binds an artifact, a variant and a configuration under the
// service's next number, in one durable transaction with its audit entry. Each
// call makes a release. Refusals: Invalid; NotFound when there is no such
// artifact; Exhausted at a limit.
func (c *Controller) CreateRelease(ctx context.Context, actor string, req *donav1.CreateReleaseRequest) (*donav1.Release, error) {
	version, err := checkRelease(req)
	if err != nil {
		return nil, err
	}
	service := req.GetService()
	var release *donav1.Release
	err = c.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		rec, err := tx.Get(artifactKey(service, version))
		if err != nil {
			return err
		}
		if !rec.Exists() {
			return &refusal.Error{Kind: refusal.NotFound, Field: "artifact_id", Text: fmt.Sprintf(
				"is %s, which service %s does not have: register it first", limits.Quote(req.GetArtifactId()), service)}
		}
		totals, err := c.count(tx, service, func(t *statev1.Delivery) error {
			if t.Releases >= limits.ReleasesPerService {
				return refusal.New(refusal.Exhausted, "service %s has %d releases: allowed are at most %d", service, t.Releases, limits.ReleasesPerService)
			}
			t.Releases++
			return nil
		})
		if err != nil {
			return err
		}
		n := totals.Releases
		release = &donav1.Release{
			Service: service, ArtifactId: req.GetArtifactId(), Variant: req.GetVariant(), Config: req.GetConfig(),
			Id: releaseID(service, n), Number: n, CreatedUnix: tx.Now().Unix(),
		}
		if err := store.Save(tx, releaseKey(service, n), &statev1.ReleaseState{Release: release}); err != nil {
			return err
		}
		if err := tx.IndexPut(releaseIndex(service), strconv.FormatUint(n, 10), n); err != nil {
			return err
		}
		// The configuration is not in the entry: it may be what only the service
		// should know.
		return c.o.Audit.Append(tx, service, audit.Entry{Kind: "release.create", Actor: actor, Detail: map[string]string{
			"id": release.Id, "number": strconv.FormatUint(n, 10), "artifact_id": release.ArtifactId, "variant": release.Variant,
		}})
	})
	if err != nil {
		return nil, err
	}
	return release, nil
}

// Artifacts lists the service's artifacts, the newest first, as many as one
// answer takes. One whose record is damaged is there by its name alone, without a
// digest. Refusal: NotFound when there is no such service.
func (c *Controller) Artifacts(tx store.ReadTx, service string) ([]*donav1.Artifact, error) {
	return list(c, tx, service, artifactIndex(service), func(member string) (*donav1.Artifact, error) {
		var a statev1.ArtifactState
		_, err := store.Load(tx, artifactKey(service, member), &a)
		if errors.Is(err, store.ErrDamaged) {
			return &donav1.Artifact{Service: service, Version: member, Id: artifactID(service, member)}, nil
		}
		return a.GetArtifact(), err
	})
}

// Releases lists the service's releases, the newest first, as many as one answer
// takes. One whose record is damaged is there by its number alone, without an
// artifact. Refusal: NotFound when there is no such service.
func (c *Controller) Releases(tx store.ReadTx, service string) ([]*donav1.Release, error) {
	return list(c, tx, service, releaseIndex(service), func(member string) (*donav1.Release, error) {
		n, err := strconv.ParseUint(member, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("delivery: index %s has the member %s", releaseIndex(service), limits.Quote(member))
		}
		r, err := loadRelease(tx, service, n)
		if errors.Is(err, store.ErrDamaged) {
			return &donav1.Release{Service: service, Number: n, Id: releaseID(service, n)}, nil
		}
		return r, err
	})
}

// listPage is how many records a list reads at once: an answer may be full long
// before it has as many as it may.
const listPage = 100

// list reads the records of an index, whose keys are below its name.
func list[M interface {
	proto.Message
	comparable
}](c *Controller, tx store.ReadTx, service, index string, load func(member string) (M, error)) (out []M, err error) {
	if err := refusal.Check("service", limits.Service(service)); err != nil {
		return nil, err
	}
	exists, err := c.o.Plane.Exists(tx, service)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, refusal.New(refusal.NotFound, "there is no service %s", service)
	}
	entries, err := tx.Scan(index, 0, store.MaxScore, 0)
	if err != nil {
		return nil, err
	}
	var none M
	size := 0
	for len(entries) > 0 {
		rest := max(0, len(entries)-listPage)
		page := entries[rest:]
		entries = entries[:rest]
		if err := store.Fetch(tx, page, func(member string) string { return index + "/" + member }); err != nil {
			return nil, err
		}
		for _, e := range slices.Backward(page) {
			m, err := load(e.Member)
			if err != nil {
				return nil, err
			}
			if m == none {
				continue
			}
			if size += proto.Size(m); len(out) == limits.ListLen || size > limits.ListBytes {
				return out, nil
			}
			out = append(out, m)
		}
	}
	return out, nil
}
