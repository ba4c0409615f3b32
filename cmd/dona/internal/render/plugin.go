package render

import (
	"fmt"
	"strconv"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Plugins is the table of a host's plugins.
func (s Style) Plugins(plugins []*donav1.PluginStatus) []string {
	t := &table{right: columns(5, 6, 7)}
	t.paint = func(row, col int) string {
		if col != 2 {
			return ""
		}
		return pluginColor(plugins[row-1].GetState())
	}
	t.add("KIND", "NAME", "STATE", "VERSION", "SOURCE", "PID", "STARTS", "EXITS", "REASON")
	for _, p := range plugins {
		t.add(Clean(p.GetKind()), Clean(p.GetName()), Clean(p.GetState()), dash(p.GetVersion()), dash(p.GetSource()), pid(p),
			strconv.FormatUint(p.GetStarts(), 10), strconv.FormatUint(p.GetExits(), 10), Clean(p.GetReason()))
	}
	return t.lines(s)
}

func pluginColor(state string) string {
	switch state {
	case "ready":
		return green
	case "quarantined", "rejected":
		return red
	}
	return yellow
}

func pid(p *donav1.PluginStatus) string {
	if p.GetPid() == 0 {
		return "-"
	}
	return strconv.Itoa(int(p.GetPid()))
}

// Plugin draws everything a host says about one plugin, and the lines of its log
// that tell of trouble, oldest first.
func (s Style) Plugin(p *donav1.PluginStatus, troubles []*donav1.PluginLogLine) []string {
	required := "no"
	if p.GetRequired() {
		required = "yes: the host is not ready without it"
	}
	out := []string{s.Bold(pluginName(p)) + "  " + s.paint(pluginColor(p.GetState()), Clean(p.GetState()))}
	for _, row := range [][2]string{
		{"reason", dash(p.GetReason())},
		{"version", dash(p.GetVersion())},
		{"source", dash(p.GetSource())},
		{"digest", dash(p.GetDigest())},
		{"generation", strconv.FormatUint(p.GetGeneration(), 10)},
		{"pid", pid(p)},
		{"starts", strconv.FormatUint(p.GetStarts(), 10)},
		{"exits", strconv.FormatUint(p.GetExits(), 10)},
		{"instances", strconv.FormatUint(uint64(p.GetInstances()), 10)},
		{"required", required},
	} {
		out = append(out, fmt.Sprintf("%-11s %s", row[0], row[1]))
	}
	if len(troubles) > 0 {
		out = append(out, "", "last troubles")
		for _, l := range troubles {
			out = append(out, s.LogLine(l))
		}
	}
	return out
}

func pluginName(p *donav1.PluginStatus) string { return Clean(p.GetKind() + "/" + p.GetName()) }

// PluginLine says in one line where a plugin is.
func PluginLine(p *donav1.PluginStatus) string {
	line := fmt.Sprintf("%s is %s", pluginName(p), Clean(p.GetState()))
	if p.GetPid() != 0 {
		line += fmt.Sprintf(": generation %d, pid %d", p.GetGeneration(), p.GetPid())
	}
	if p.GetReason() != "" {
		line += ": " + Clean(p.GetReason())
	}
	return line
}

// LogLine is a line of a plugin's log: local time, level, generation of the
// process, text.
func (s Style) LogLine(l *donav1.PluginLogLine) string {
	level := fmt.Sprintf("%-5s", Clean(l.GetLevel()))
	switch l.GetLevel() {
	case "warn":
		level = s.Warn(level)
	case "error":
		level = s.Bad(level)
	}
	generation := "-"
	if l.GetGeneration() != 0 {
		generation = strconv.FormatUint(l.GetGeneration(), 10)
	}
	at := time.UnixMilli(l.GetUnixMs()).Format("2006-01-02 15:04:05.000")
	return fmt.Sprintf("%s %s [%s] %s", s.Dim(at), level, generation, Clean(l.GetText()))
}
