package decide

import (
	"fmt"
	"strconv"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// hashKey returns what a consistent hash goes by: 0 when the plan does not hash, or
// by something that the request has not. Of an application a request has a unit
// and attributes; the other sources are for proxies, and a host gives them to no
// service.
func (p *Program) hashKey(req *Request) uint64 {
	switch p.hash {
	case donav1.HashPolicy_SOURCE_UNIT:
		if req.Unit != "" {
			return plan.Key(req.Unit)
		}
	case donav1.HashPolicy_SOURCE_ATTRIBUTE:
		if a := find(req.Attributes, p.hashName); a != nil {
			return a.hashKey()
		}
	}
	return 0
}

// hashKey hashes the value as text, so that the number 5 and the text 5 are the
// same key. An empty text is no value.
func (a *Attribute) hashKey() uint64 {
	var text [32]byte
	switch a.kind {
	case attributeString:
		if a.text == "" {
			return 0
		}
		return plan.Key(a.text)
	case attributeInt:
		return plan.Key(strconv.AppendInt(text[:0], a.number, 10))
	case attributeFloat:
		return plan.Key(strconv.AppendFloat(text[:0], a.real, 'g', -1, 64))
	case attributeBool:
		return plan.Key(strconv.AppendBool(text[:0], a.number != 0))
	default:
		return 0
	}
}

// hashedBy says what a request was hashed by, for people; empty when the plan does
// not hash.
func (p *Program) hashedBy(key uint64) string {
	var by string
	switch p.hash {
	case donav1.HashPolicy_SOURCE_UNSPECIFIED:
		return ""
	case donav1.HashPolicy_SOURCE_UNIT:
		by = "unit"
	case donav1.HashPolicy_SOURCE_ATTRIBUTE:
		by = "attribute " + p.hashName
	default:
		by = p.hash.String()
	}
	if key == 0 {
		return fmt.Sprintf(" by %s, which the request has not: at random", by)
	}
	return " by " + by
}
