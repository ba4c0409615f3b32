package refusal

import (
	"errors"
	"fmt"
	"testing"
)

func TestRefusals(t *testing.T) {
	cause := errors.New("of the machine")
	for _, tc := range []struct {
		err  error
		kind Kind
		text string
	}{
		{Field("steps[1]", "is %d: allowed are 1 to 100", 0), Invalid, "steps[1] is 0: allowed are 1 to 100"},
		{New(NotFound, "no service %q", "web"), NotFound, `no service "web"`},
		{Check("service", errors.New("is empty")), Invalid, "service is empty"},
		{&Error{Kind: Unavailable, Text: "not now", Cause: cause}, Unavailable, "not now"}, // the cause is not for the caller
	} {
		if tc.err.Error() != tc.text {
			t.Errorf("it says %q, want %q", tc.err, tc.text)
		}
		for kind := Invalid; kind <= Unavailable; kind++ {
			for _, err := range []error{tc.err, fmt.Errorf("set flag: %w", tc.err), errors.Join(cause, tc.err)} {
				if Is(err, kind) != (kind == tc.kind) {
					t.Errorf("%v is of kind %d: %v", err, kind, Is(err, kind))
				}
			}
		}
	}
	if !errors.Is(&Error{Kind: Unavailable, Cause: cause}, cause) {
		t.Error("the cause is lost")
	}
	if err := Check("service", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if Is(nil, Invalid) || Is(cause, Invalid) {
		t.Error("what is no refusal is one")
	}
}
