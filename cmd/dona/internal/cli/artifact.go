package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) artifactCommand() *cobra.Command {
	return group("artifact", "Register and list the builds of a service",
		a.artifactRegisterCommand(), a.artifactListCommand())
}

func (a *app) artifactRegisterCommand() *cobra.Command {
	request := &donav1.RegisterArtifactRequest{}
	var labels []string
	cmd := &cobra.Command{
		Use:   "register SERVICE --version VERSION --digest sha256:HEX",
		Short: "Register a build for good; the same one again changes nothing",
		Long: `Register a build for good. A version keeps the digest it was registered with:
the same again changes nothing, another digest is refused.

  dona artifact register checkout --version 1.4.2 \
    --digest "sha256:$(sha256sum checkout.tar | cut -d' ' -f1)" --uri oci://registry.example.com/checkout`,
		Args: positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			request.Service = args[0]
			if err := limits.Version(request.Version); err != nil {
				return usage("--version %v", err)
			}
			if err := limits.Digest(request.Digest); err != nil {
				return usage("--digest %v", err)
			}
			if request.Labels, err = assignments("--label", labels); err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				artifact, err := call(c, "artifact of "+request.Service, c.control.RegisterArtifact, request)
				if err != nil {
					return err
				}
				return a.answer(artifact, func() []string { return a.style().Artifacts([]*donav1.Artifact{artifact}) })
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&request.Version, "version", "", "its version")
	fl.StringVar(&request.Digest, "digest", "", "sha256: and the hash of its bytes in hex")
	fl.StringVar(&request.Uri, "uri", "", "where it can be found, without a password")
	fl.StringArrayVar(&labels, "label", nil, "NAME=VALUE; may be repeated")
	return cmd
}

// assignments reads NAME=VALUE texts.
func assignments(flag string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, text := range texts {
		name, value, found := strings.Cut(text, "=")
		if !found || name == "" {
			return nil, usage("%s is %s: allowed is NAME=VALUE", flag, limits.Quote(text))
		}
		if _, twice := out[name]; twice {
			return nil, usage("%s names %s twice", flag, limits.Quote(name))
		}
		out[name] = value
	}
	return out, nil
}

func (a *app) artifactListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list SERVICE",
		Short: "List the builds of a service, the newest first",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "artifacts of "+args[0], c.control.ListArtifacts, &donav1.ListArtifactsRequest{Service: args[0]})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					if len(reply.GetArtifacts()) == 0 {
						return []string{args[0] + " has no artifacts"}
					}
					return a.style().Artifacts(reply.GetArtifacts())
				})
			})
		},
	}
}

func (a *app) releaseCommand() *cobra.Command {
	return group("release", "Create and list the releases of a service",
		a.releaseCreateCommand(), a.releaseListCommand())
}

func (a *app) releaseCreateCommand() *cobra.Command {
	request := &donav1.CreateReleaseRequest{}
	var config []string
	cmd := &cobra.Command{
		Use:   "create SERVICE --artifact VERSION --variant VARIANT",
		Short: "Bind a build, a variant and a configuration under the next number",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			request.Service = args[0]
			if err := limits.Name(request.Variant); err != nil {
				return usage("--variant %v", err)
			}
			if !strings.Contains(request.ArtifactId, ":") { // a version of this service
				if err := limits.Version(request.ArtifactId); err != nil {
					return usage("--artifact %v", err)
				}
				request.ArtifactId = request.Service + ":" + request.ArtifactId
			}
			if request.Config, err = assignments("--set", config); err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				release, err := call(c, "release of "+request.Service, c.control.CreateRelease, request)
				if err != nil {
					return err
				}
				return a.answer(release, func() []string { return a.style().Releases([]*donav1.Release{release}) })
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&request.ArtifactId, "artifact", "", "version of the artifact, or its id")
	fl.StringVar(&request.Variant, "variant", "", "the variant that its endpoints register with")
	fl.StringArrayVar(&config, "set", nil, "NAME=VALUE of its configuration; may be repeated")
	return cmd
}

func (a *app) releaseListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list SERVICE",
		Short: "List the releases of a service, the newest first",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "releases of "+args[0], c.control.ListReleases, &donav1.ListReleasesRequest{Service: args[0]})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					if len(reply.GetReleases()) == 0 {
						return []string{fmt.Sprintf("%s has no releases", args[0])}
					}
					return a.style().Releases(reply.GetReleases())
				})
			})
		},
	}
}
