package cli

import (
	"bytes"
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// lines writes text for people.
func (a *app) lines(lines ...string) error {
	if len(lines) == 0 {
		return nil
	}
	a.wrote = true
	_, err := a.out.Write([]byte(strings.Join(lines, "\n") + "\n"))
	return writing(err)
}

// message writes m as one line of JSON with the names of the .proto file.
func (a *app) message(m proto.Message) error {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return failed("OUTPUT", "the answer cannot be written as JSON: %v", err)
	}
	return a.rawJSON(raw)
}

// object writes what has no message of its own.
func (a *app) object(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return failed("OUTPUT", "the answer cannot be written as JSON: %v", err)
	}
	return a.rawJSON(raw)
}

// rawJSON compacts: protojson varies its blanks on purpose, and with --watch a
// line is an object.
func (a *app) rawJSON(raw []byte) error {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return failed("OUTPUT", "the answer cannot be written as JSON: %v", err)
	}
	return a.lines(b.String())
}

// answer writes m as JSON or text for people.
func (a *app) answer(m proto.Message, text func() []string) error {
	if a.json {
		return a.message(m)
	}
	return a.lines(text()...)
}

func (a *app) writeError(f *failure) {
	type body struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Exit    int    `json:"exit"`
		Seq     uint64 `json:"seq,omitempty"`
		Cause   string `json:"cause,omitempty"`
	}
	// A stdout that takes nothing is what the failure is about already.
	_ = a.object(map[string]body{"error": {f.kind, f.msg, f.code, f.seq, f.cause}})
}
