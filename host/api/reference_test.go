package api_test

import (
	"os"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestReferenceNamesEveryCode: what TestBadInput sees a call refuse is in its part
// of the reference.
func TestReferenceNamesEveryCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/api-control-plane.md")
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string]bool{}
	for _, m := range donav1.ControlPlane_ServiceDesc.Methods {
		methods[m.MethodName] = true
	}
	for _, s := range donav1.ControlPlane_ServiceDesc.Streams {
		methods[s.StreamName] = true
	}
	checked := map[string]bool{}
	for _, r := range badRows() {
		method, _, _ := strings.Cut(r.name, ":")
		if method == "query" {
			method = "StartRollout"
		}
		if !methods[method] {
			continue // named by what is wrong
		}
		_, part, found := strings.Cut(string(page), "\n### "+method+"\n")
		part, _, _ = strings.Cut(part, "\n### ")
		// As the page spells it: InvalidArgument is INVALID_ARGUMENT.
		var code strings.Builder
		for i, c := range r.code.String() {
			if i > 0 && c >= 'A' && c <= 'Z' {
				code.WriteByte('_')
			}
			code.WriteRune(c)
		}
		if !found || !strings.Contains(part, "\n- "+strings.ToUpper(code.String())+": ") {
			t.Errorf("%s is refused with %s, which the reference does not say of %s", r.name, r.code, method)
		}
		checked[method] = true
	}
	if len(checked) < 10 {
		t.Errorf("only %v were checked", checked)
	}
}
