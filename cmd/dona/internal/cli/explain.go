package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

type explainFlags struct {
	unit    string
	attrs   []string
	regions []string
}

func (a *app) explainCommand() *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain SERVICE",
		Short: "Show how a request would be decided, stage by stage",
		Long: `Show how a request would be decided, stage by stage. The decision is made here,
by the code of the SDK, on the snapshot that the host gives out now; nothing is
counted or reported.

  dona explain checkout --unit user-42 --attr country=CH --attr age:int=30 --region eu-west`,
		Args: positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request()
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error { return a.explain(c, args[0], request) })
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.unit, "unit", "", "whom the request is for: a user, a session, a tenant")
	fl.StringArrayVar(&f.attrs, "attr", nil, "NAME=VALUE of a text, or NAME:TYPE=VALUE with int, float or bool; may be repeated")
	fl.StringSliceVar(&f.regions, "region", nil, "the only regions that may serve this request; may be repeated")
	return cmd
}

func (f *explainFlags) request() (decide.Request, error) {
	request := decide.Request{Unit: f.unit, Regions: f.regions}
	for _, text := range f.attrs {
		attribute, err := parseAttribute(text)
		if err != nil {
			return request, err
		}
		request.Attributes = append(request.Attributes, attribute)
	}
	return request, nil
}

func parseAttribute(text string) (decide.Attribute, error) {
	key, value, ok := strings.Cut(text, "=")
	name, kind, _ := strings.Cut(key, ":")
	if !ok || name == "" {
		return decide.Attribute{}, usage("--attr is %s: allowed is NAME=VALUE or NAME:TYPE=VALUE", limits.Quote(text))
	}
	var err error
	switch kind {
	case "", "text":
		return decide.String(name, value), nil
	case "int":
		var n int64
		if n, err = strconv.ParseInt(value, 10, 64); err == nil {
			return decide.Int(name, n), nil
		}
	case "float":
		var x float64
		if x, err = strconv.ParseFloat(value, 64); err == nil {
			return decide.Float(name, x), nil
		}
	case "bool":
		var b bool
		if b, err = strconv.ParseBool(value); err == nil {
			return decide.Bool(name, b), nil
		}
	default:
		return decide.Attribute{}, usage("--attr %s has type %s: allowed are text, int, float, bool", limits.Quote(name), limits.Quote(kind))
	}
	return decide.Attribute{}, usage("--attr %s is %s: allowed is a value of type %s", limits.Quote(name), limits.Quote(value), kind)
}

func (a *app) explain(c *connection, service string, request decide.Request) error {
	reply, err := c.status(service)
	if err != nil {
		return err
	}
	trace, err := decide.Explain(reply.GetConfig(), request)
	if err != nil {
		return failed("SNAPSHOT", "explain %s: a client would refuse this snapshot: %v", service, err)
	}
	if a.json {
		return a.object(traceJSON(trace))
	}
	return a.lines(a.style().Trace(trace)...)
}

type stageJSON struct {
	Name   string   `json:"name"`
	Result string   `json:"result"`
	Detail []string `json:"detail,omitempty"`
}

type endpointJSON struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Variant string `json:"variant"`
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
}

type decisionJSON struct {
	Service  string        `json:"service"`
	Version  uint64        `json:"version"`
	Stages   []stageJSON   `json:"stages"`
	Decision string        `json:"decision"`
	Reason   string        `json:"reason,omitempty"`
	Variant  string        `json:"variant,omitempty"`
	Flag     string        `json:"flag,omitempty"`
	Endpoint *endpointJSON `json:"endpoint,omitempty"`
	Error    string        `json:"error_detail,omitempty"`
}

func traceJSON(t *decide.Trace) decisionJSON {
	r := t.Result
	out := decisionJSON{
		Service: t.Service, Version: t.Version, Decision: r.Kind.String(),
		Variant: r.Variant, Flag: r.Flag, Error: r.Error,
	}
	if r.Reason != 0 {
		out.Reason = r.Reason.String()
	}
	if r.Endpoint.ID != "" {
		e := endpointJSON(r.Endpoint)
		out.Endpoint = &e
	}
	for _, s := range t.Stages {
		out.Stages = append(out.Stages, stageJSON(s))
	}
	return out
}
