package attest

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// NonceFile holds, in a folder of reports, the nonce that they were asked for with.
// Whoever asked has written it; a folder from elsewhere proves nothing by it.
const NonceFile = "nonce"

// maxPages bounds a folder.
const maxPages = 1 << 20

// PageName is the name of the n-th report of a folder, from 1: report.json, then
// report-2.json and so on. The signature beside it is named the same with .sig.
func PageName(n int) (report, signature string) {
	base := "report"
	if n > 1 {
		base = fmt.Sprintf("report-%d", n)
	}
	return base + ".json", base + ".sig"
}

// ReadPages reads the reports of a folder in their order. nonce is nil when the
// folder has none. An error is the file system's.
func ReadPages(dir fs.FS) (pages []Page, nonce *string, err error) {
	for n := 1; n <= maxPages; n++ {
		name, sigName := PageName(n)
		report, err := fs.ReadFile(dir, name)
		if errors.Is(err, fs.ErrNotExist) && n > 1 {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		signature, err := fs.ReadFile(dir, sigName)
		if err != nil {
			return nil, nil, err
		}
		pages = append(pages, Page{Name: name, Report: report, Signature: signature})
	}
	text, err := fs.ReadFile(dir, NonceFile)
	if errors.Is(err, fs.ErrNotExist) {
		return pages, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	said := strings.TrimSuffix(string(text), "\n")
	return pages, &said, nil
}
