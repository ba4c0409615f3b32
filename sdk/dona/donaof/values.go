package donaof

import (
	"math"
	"reflect"
	"strconv"
)

// How values are read. mapped says that a value is from Config.Values: then it is
// of a type, else a name that may spell one.

func text(v any, _ bool) (string, bool) {
	s, ok := v.(string)
	return s, ok
}

// object takes what is none of the other types.
func object(v any, mapped bool) (any, bool) {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Bool, reflect.String:
		return v, false
	}
	return v, mapped && !r.CanInt() && !r.CanUint() && !r.CanFloat()
}

func isFloat(v any) bool {
	k := reflect.ValueOf(v).Kind()
	return k == reflect.Float32 || k == reflect.Float64
}

func integer(v any, mapped bool) (int64, bool) {
	if name, ok := v.(string); ok && !mapped {
		n, err := strconv.ParseInt(name, 10, 64)
		return n, err == nil
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return r.Int(), true
	case r.CanUint():
		return int64(r.Uint()), r.Uint() <= math.MaxInt64
	case r.CanFloat(): // as JSON gives whole numbers
		f := r.Float()
		return int64(f), f == math.Trunc(f) && math.Abs(f) <= 1<<53
	}
	return 0, false
}

func float(v any, mapped bool) (float64, bool) {
	if name, ok := v.(string); ok && !mapped {
		f, err := strconv.ParseFloat(name, 64)
		return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
	}
	switch r := reflect.ValueOf(v); {
	case r.CanFloat():
		return r.Float(), true
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	}
	return 0, false
}
