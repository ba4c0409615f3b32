package badplugins

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/plugins"
)

// The package comment is the list that people choose from.
func TestEverythingIsInTheComment(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z][a-z-]*)`).FindAllSubmatch(text, -1) {
		listed[string(m[1])] = true
	}
	names := Names()
	for name := range deeds {
		if name != "" {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%s is not in the package comment", name)
		}
	}
	for name := range listed {
		if name != "name" && !slices.Contains(names, name) {
			t.Errorf("%s is in the package comment and nowhere else", name)
		}
	}
}

func TestWrongNamesAreNoticed(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a behaviour that does not exist was accepted")
		}
	}()
	Open("/nonexistent").File(plugins.ID{Kind: plugins.KindAnalysis, Name: "x"}, "no-such")
}

// The page that says which test shows what names tests that are there.
func TestPageNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/plugin-faults.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	err = filepath.WalkDir("..", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(page, -1) {
		if !there[string(m[1])] {
			t.Errorf("%s is named and not there", m[1])
		}
	}
}
