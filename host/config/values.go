package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/dodona-project/dodona/host/store/redis"
)

func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// setStore parses the URL and leaves what the settings below store.redis have set.
func setStore(c *Config, v string) error {
	if v == "embedded" {
		c.Store = v
		return nil
	}
	if !strings.Contains(v, "://") {
		return fmt.Errorf("is %q: allowed are embedded and redis://host:port/db with its other forms", short(v))
	}
	t, err := redis.ParseURL(v)
	if err != nil {
		return err
	}
	old := c.Redis
	c.Store, c.Redis = t.String(), t
	c.Redis.Cluster, c.Redis.PasswordFile, c.Redis.SentinelPasswordFile = old.Cluster, old.PasswordFile, old.SentinelPasswordFile
	c.Redis.CAFile, c.Redis.ServerName = old.CAFile, old.ServerName
	return nil
}

func text(at func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error { *at(c) = v; return nil }
}

func number(at func(*Config) *int, most int) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > most {
			return fmt.Errorf("is %q: allowed are 0 to %d", short(v), most)
		}
		*at(c) = n
		return nil
	}
}

// size reads a number of MiB or GiB, at least 64 MiB; empty is 0.
func size(v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	digits, shift := strings.TrimSuffix(v, "MiB"), 20
	if digits == v {
		digits, shift = strings.TrimSuffix(v, "GiB"), 30
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || digits == v || n<<shift < 64<<20 || n > 1<<20 {
		return 0, fmt.Errorf("is %q: allowed are 64MiB and more, with a unit (MiB, GiB)", short(v))
	}
	return n << shift, nil
}

func boolean(at func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		switch v {
		case "true", "1":
			*at(c) = true
		case "false", "0":
			*at(c) = false
		default:
			return fmt.Errorf("is %q: allowed are true and false", short(v))
		}
		return nil
	}
}

func address(at func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error {
		host, port, err := net.SplitHostPort(v)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil || host == "" {
			return fmt.Errorf("is %q: allowed is host:port, such as 127.0.0.1:7600", short(v))
		}
		*at(c) = v
		return nil
	}
}

func duration(at func(*Config) *time.Duration, least, most time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < least || d > most {
			return fmt.Errorf("is %q: allowed are %s to %s, with a unit (ms, s, m, h)", short(v), least, most)
		}
		*at(c) = d
		return nil
	}
}

// short keeps what is quoted of a bad value to a line's length.
func short(s string) string {
	if len(s) > 64 {
		return s[:61] + "..."
	}
	return s
}

// unwrapped is the system's own word: the path is told beside it.
func unwrapped(err error) error {
	if cause := errors.Unwrap(err); cause != nil {
		return cause
	}
	return err
}
