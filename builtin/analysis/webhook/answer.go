package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// answer is what an endpoint says.
type answer struct {
	rollout  string
	step     uint32
	verdict  donav1.Verdict // UNSPECIFIED: the value is to be compared
	value    float64        // finite
	hasValue bool
	detail   string
}

var verdicts = map[string]donav1.Verdict{
	"pass": donav1.Verdict_VERDICT_PASS, "breach": donav1.Verdict_VERDICT_BREACH, "missing": donav1.Verdict_VERDICT_MISSING,
}

// decode reads an answer, strictly: one JSON object with the keys that are known,
// each once and with a value of its type. A key that is not known may have been
// meant to say that the rest does not count. The error's text begins with the
// reason.
func decode(raw []byte) (a answer, err error) {
	if !utf8.Valid(raw) {
		return a, errors.New("bad body: not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return a, errors.New("bad body: not a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			return a, errors.New("bad body: not a JSON object")
		}
		if seen[key] {
			return a, fmt.Errorf("bad body: the key %.32q is there twice", key)
		}
		seen[key] = true
		if err := a.set(d, key); err != nil {
			return a, err
		}
	}
	if _, err := d.Token(); err != nil {
		return a, errors.New("bad body: the JSON object has no end")
	}
	if _, err := d.Token(); err != io.EOF {
		return a, errors.New("bad body: more than one JSON value")
	}
	for _, key := range []string{"version", "rollout", "step"} {
		if !seen[key] {
			return a, fmt.Errorf("bad body: the key %s is not there", key)
		}
	}
	if !seen["verdict"] && !seen["value"] {
		return a, errors.New("bad body: neither verdict nor value")
	}
	return a, nil
}

// set reads the value of one key.
func (a *answer) set(d *json.Decoder, key string) error {
	switch key {
	case "version":
		v, err := value[uint32](d, key, "1")
		if err == nil && v != version {
			err = fmt.Errorf("bad body: version is %d: allowed is %d", v, version)
		}
		return err
	case "rollout":
		v, err := value[string](d, key, "a text")
		a.rollout = v
		return err
	case "step":
		v, err := value[uint32](d, key, "a whole number from 0 up")
		a.step = v
		return err
	case "verdict":
		const allowed = "pass, breach or missing"
		v, err := value[string](d, key, allowed)
		if a.verdict = verdicts[v]; err == nil && a.verdict == donav1.Verdict_VERDICT_UNSPECIFIED {
			err = fmt.Errorf("bad body: verdict is %.32q: allowed is %s", v, allowed)
		}
		return err
	case "value":
		v, err := value[float64](d, key, "a finite number") // what JSON can write is finite, or out of range
		a.value, a.hasValue = v, err == nil
		return err
	case "detail":
		v, err := value[string](d, key, "a text")
		a.detail = v
		return err
	}
	return fmt.Errorf("bad body: the key %.32q is not known: allowed are version, rollout, step, verdict, value and detail", key)
}

// value reads a value that is there: null is none.
func value[T any](d *json.Decoder, key, allowed string) (T, error) {
	var v *T
	if err := d.Decode(&v); err != nil || v == nil {
		var zero T
		return zero, fmt.Errorf("bad body: %s is something else: allowed is %s", key, allowed)
	}
	return *v, nil
}
