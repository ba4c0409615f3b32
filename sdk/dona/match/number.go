package match

import (
	"cmp"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// number is the value of a rule about numbers: a whole number of any size when it is
// written as one, else the nearest float64. Comparing with it is exact.
type number struct {
	floor  whole // the largest whole number that is not above it
	plain  bool  // it is floor
	small  bool  // floor is n
	n      int64
	below  float64 // the largest float64 that is not above it; -Inf when none is
	binary bool    // it is below
}

// whole is a whole number as it is written. Zero is not negative.
type whole struct {
	negative bool
	digits   string // no leading zeros
}

// kind is what a text spells.
type kind uint8

const (
	noNumber    kind = iota
	wholeNumber      // no point and no exponent
	decimal
)

// scanNumber reads a number of JSON (RFC 8259, section 6): no plus sign, no leading
// zeros, no NaN, no other base, nothing around it.
func scanNumber(s string) (w whole, k kind) {
	rest := strings.TrimPrefix(s, "-")
	n := digits(rest)
	if n == 0 || n > 1 && rest[0] == '0' {
		return w, noNumber
	}
	w = whole{len(rest) < len(s) && rest[:n] != "0", rest[:n]}
	if n == len(rest) {
		return w, wholeNumber
	}
	rest = rest[n:]
	if rest[0] == '.' {
		n := digits(rest[1:])
		if n == 0 {
			return w, noNumber
		}
		rest = rest[1+n:]
	}
	if rest != "" && (rest[0] == 'e' || rest[0] == 'E') {
		rest = rest[1:]
		if rest != "" && (rest[0] == '+' || rest[0] == '-') {
			rest = rest[1:]
		}
		n := digits(rest)
		if n == 0 {
			return w, noNumber
		}
		rest = rest[n:]
	}
	if rest != "" {
		return w, noNumber
	}
	return w, decimal
}

// digits counts the digits that s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// parseFloat reads a number that scanNumber found.
func parseFloat(s string) (float64, bool) {
	x, err := strconv.ParseFloat(s, 64)
	return x, err == nil
}

func parseNumber(s string) (number, bool) {
	w, k := scanNumber(s)
	switch k {
	case wholeNumber:
		exact, _ := new(big.Int).SetString(s, 10)
		out := number{floor: w, plain: true}
		// Rounded down to the 53 bits of a float64.
		near := new(big.Float).SetMode(big.ToNegativeInf).SetPrec(53).SetInt(exact)
		out.below, _ = near.Float64()
		if math.IsInf(out.below, 1) {
			out.below = math.MaxFloat64
		}
		out.binary = !math.IsInf(out.below, 0) && new(big.Float).SetFloat64(out.below).Cmp(new(big.Float).SetInt(exact)) == 0
		out.small, out.n = exact.IsInt64(), exact.Int64()
		return out, true
	case decimal:
		x, ok := parseFloat(s)
		if !ok {
			return number{}, false
		}
		down := math.Floor(x)
		exact, _ := new(big.Float).SetFloat64(down).Int(nil)
		return number{floor: whole{exact.Sign() < 0, new(big.Int).Abs(exact).String()}, plain: down == x,
			small: exact.IsInt64(), n: exact.Int64(), below: x, binary: true}, true
	}
	return number{}, false
}

// The comparisons return below 0 when the attribute is smaller than the value, 0 when
// they are equal, above 0 when it is larger.

func (v *number) compareInt(n int64) int {
	if !v.small {
		if v.floor.negative {
			return 1
		}
		return -1
	}
	return v.fromFloor(cmp.Compare(n, v.n))
}

func (v *number) compareWhole(w whole) int { return v.fromFloor(w.compare(v.floor)) }

// fromFloor turns how a whole number stands to the floor into how it stands to the
// value.
func (v *number) fromFloor(c int) int {
	if c == 0 && !v.plain {
		return -1
	}
	return c
}

func (v *number) compareFloat(x float64) int {
	switch {
	case x > v.below:
		return 1
	case x == v.below && v.binary:
		return 0
	}
	return -1
}

func (w whole) compare(o whole) int {
	if w.negative != o.negative {
		if w.negative {
			return -1
		}
		return 1
	}
	c := compareDigits(w.digits, o.digits)
	if w.negative {
		return -c
	}
	return c
}

// compareDigits compares two numbers without leading zeros.
func compareDigits(a, b string) int {
	if len(a) != len(b) {
		return cmp.Compare(len(a), len(b))
	}
	return strings.Compare(a, b)
}
