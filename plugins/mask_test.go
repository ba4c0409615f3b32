package plugins

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSecretsOfCallsAreHiddenWhileTheyMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMask(map[string]string{"T": "of-settings", "SHORT": "abc"})
		one := m.hide([]string{"of-call", "xyz"})
		two := m.hide([]string{"of-call"})
		const line = "of-settings abc of-call xyz"
		shows := func(want string) {
			t.Helper()
			if got := m.replace(line, false); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		shows("*** abc *** xyz")
		one()
		time.Sleep(time.Minute)
		shows("*** abc *** xyz") // the other call has it too
		two()
		time.Sleep(hiddenAfter)
		shows("*** abc *** xyz") // its lines may still be on their way
		time.Sleep(time.Second)
		shows("*** abc of-call xyz")
		if len(m.held) != 1 || len(m.after) != 0 {
			t.Errorf("it holds %v and %v", m.held, m.after)
		}
	})
}

func TestSecretsOfEndedCallsAreBounded(t *testing.T) {
	m := newMask(nil)
	for i := range 3 * maxSecretsAfter {
		m.hide([]string{fmt.Sprintf("secret-%05d", i)})()
	}
	if len(m.held) != maxSecretsAfter || len(m.after) != maxSecretsAfter {
		t.Errorf("%d held, %d of ended calls", len(m.held), len(m.after))
	}
	if s := m.replace(fmt.Sprintf("secret-%05d", 3*maxSecretsAfter-1), false); s != hidden {
		t.Errorf("the newest shows as %q", s)
	}
}

// A line that is cut may end within a secret.
func TestCutSecretsAreHidden(t *testing.T) {
	m := newMask(map[string]string{"A": "password-1", "B": "pass-phrase"})
	for in, want := range map[string]string{
		"x password-1": "x ***", "x password-": "x ***", "x pass-ph": "x ***", "x p": "x ***",
		"pass-phrase": "***", "nothing": "nothing", "": "", "passwords are fine, here": "passwords are fine, here",
	} {
		if got := m.replace(in, true); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	if got := m.replace("x password-", false); got != "x password-" {
		t.Errorf("a whole text became %q", got)
	}
}

func TestSecretsAreFoundBeforeFieldsAreCut(t *testing.T) {
	o := newOutput(nil, map[string]string{"T": "the-secret"}, nil)
	long := strings.Repeat("x", maxFieldLen-4) + "the-secret"
	_, msg, fields := parseLine([]byte(`{"@message":"the\u002dsecret","f":"`+long+`"}`), o.hiding(nil))
	if msg != hidden || strings.Contains(fields[1].(string), "the-") {
		t.Errorf("%q, %v", msg, fields)
	}
}
