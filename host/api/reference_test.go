package api_test

import (
	"os"
	"strings"
	"testing"
)

// TestReferenceNamesEveryCode: what TestBadInput and TestWorkersBadInput see a call refuse is in its part
// of the reference.
func TestReferenceNamesEveryCode(t *testing.T) {
	var page strings.Builder
	for _, name := range []string{"api-control-plane.md", "api-egress.md"} {
		text, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		page.Write(text)
	}
	methods := map[string]bool{}
	for _, call := range calls() {
		methods[call] = true
	}
	checked := map[string]bool{}
	rows := badRows()
	for _, r := range fleetRows() {
		rows = append(rows, row{name: r.name, code: r.code})
	}
	for _, r := range rows {
		method, _, _ := strings.Cut(r.name, ":")
		if method == "query" {
			method = "StartRollout"
		}
		if !methods[method] {
			continue // named by what is wrong
		}
		_, part, found := strings.Cut(page.String(), "\n### "+method+"\n")
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
	if len(checked) < 24 {
		t.Errorf("only %v were checked", checked)
	}
}
