package render

import (
	"strings"
	"unicode/utf8"
)

// table lays out rows in columns; the first row is the heading. Cells are plain
// text: colour comes afterwards, as it would count as width.
type table struct {
	rows   [][]string
	right  map[int]bool              // columns of numbers
	paint  func(row, col int) string // colour code of a cell, "" for none
	indent string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) lines(s Style) []string {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	out := make([]string, 0, len(t.rows))
	for r, row := range t.rows {
		var b strings.Builder
		b.WriteString(t.indent)
		for i, cell := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				b.WriteString(pad)
			}
			switch {
			case r == 0:
				b.WriteString(s.Dim(cell))
			case t.paint != nil:
				b.WriteString(s.paint(t.paint(r, i), cell))
			default:
				b.WriteString(cell)
			}
			if !t.right[i] && i < len(row)-1 {
				b.WriteString(pad)
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

// columns names the columns of numbers.
func columns(n ...int) map[int]bool {
	m := make(map[int]bool, len(n))
	for _, i := range n {
		m[i] = true
	}
	return m
}
