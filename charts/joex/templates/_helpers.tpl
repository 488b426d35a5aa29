{{/* Names. Each ends within the 63 characters that a label may have. */}}

{{- define "joex.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $release .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "joex.operator" -}}
{{ include "joex.fullname" . }}-operator
{{- end -}}

{{- define "joex.console" -}}
{{ include "joex.fullname" . }}-console
{{- end -}}

{{- define "joex.postgresql" -}}
{{ include "joex.fullname" . }}-postgresql
{{- end -}}

{{/* The name of cluster-scoped objects, which differs from that of a release in another namespace. */}}
{{- define "joex.clusterName" -}}
{{ .Release.Namespace }}:{{ include "joex.operator" . }}
{{- end -}}

{{/* As above, of a kind whose names have no colon. No namespace has a dot. */}}
{{- define "joex.policy" -}}
{{ .Release.Namespace }}.{{ include "joex.operator" . }}
{{- end -}}

{{- define "joex.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "joex.operator" .) }}
{{- end -}}

{{- define "joex.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ include "joex.registry" . }}{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ include "joex.registry" . }}{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "joex.registry" -}}
{{- with .Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- end -}}

{{/*
Labels: (list . "component"), of objects and pods with more: (list . "component" $more). The chart's own take precedence.
Executors have the label of their component too.
*/}}

{{- define "joex.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "joex.podLabels" -}}
{{- $root := index . 0 -}}
{{- $more := ternary (last .) dict (gt (len .) 2) -}}
{{ merge (include "joex.selector" . | fromYaml) $more $root.Values.commonLabels | toYaml }}
{{- end -}}

{{- define "joex.labels" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" -}}
{{- $own := dict "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service "helm.sh/chart" $chart -}}
{{ merge $own (include "joex.podLabels" . | fromYaml) | toYaml }}
{{- end -}}

{{/* A cluster autoscaler removes no node with a pod that has an emptyDir, unless the pod says it can lose it. */}}
{{- define "joex.podAnnotations" -}}
{{ merge (deepCopy .podAnnotations) (dict "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" "tmp") | toYaml }}
{{- end -}}

{{- define "joex.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The namespaces that the operator watches, separated by commas; empty: all. (Only text comes out of a template.) */}}
{{- define "joex.watched" -}}
{{- $given := .Values.watchNamespaces -}}
{{- if not (has "*" $given) -}}
{{ default (list .Release.Namespace) $given | join "," }}
{{- end -}}
{{- end -}}

{{/* Whether to install the trial PostgreSQL: "true", or empty. */}}
{{- define "joex.trial" -}}
{{- $given := or .Values.database.existingSecret .Values.database.url -}}
{{- if eq (toString .Values.postgresql.enabled) "auto" -}}
{{- if not $given }}true{{ end -}}
{{- else if .Values.postgresql.enabled -}}
true
{{- end -}}
{{- end -}}

{{/*
The secret with the database's URL. Each source has a secret of its own, because a pool can't change its secret while its
executors still need their database to drain; another URL in the same secret would go unnoticed.
*/}}
{{- define "joex.databaseSecret" -}}
{{- if .Values.database.existingSecret -}}
{{ .Values.database.existingSecret }}
{{- else if .Values.database.url -}}
{{ include "joex.fullname" . }}-database
{{- else -}}
{{ include "joex.postgresql" . }}
{{- end -}}
{{- end -}}

{{- define "joex.databaseKey" -}}
{{ ternary .Values.database.existingSecretKey "url" (ne .Values.database.existingSecret "") }}
{{- end -}}

{{/* The origin of an existing CRD that another release or tool has made: (list . "name"); empty if there is none. */}}
{{- define "joex.isForeign" -}}
{{- $root := index . 0 -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (index . 1) -}}
{{- if $found -}}
{{- $annotations := default dict $found.metadata.annotations -}}
{{- $name := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if not (and (eq $name $root.Release.Name) (eq $namespace $root.Release.Namespace)) -}}
{{- ternary "not made by Helm" (printf "made by the release %s/%s" $namespace $name) (eq $name "") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The manifest of the first pool, which the operator applies. */}}
{{- define "joex.pool" -}}
{{- $database := dict "secretName" (include "joex.databaseSecret" .) "secretKey" (include "joex.databaseKey" .) -}}
{{- $pull := dict -}}
{{- with .Values.imagePullSecrets -}}
{{- $pull = dict "template" (dict "spec" (dict "imagePullSecrets" .)) -}}
{{- end -}}
apiVersion: joex.dev/v1alpha1
kind: JoexPool
metadata:
  name: {{ .Values.pool.name | quote }}
  namespace: {{ .Release.Namespace | quote }}
spec: {{- merge (dict "database" $database) (deepCopy .Values.pool.spec) $pull | toYaml | nindent 2 }}
{{- end -}}

{{- define "joex.queue" -}}
{{ first (default (list "default") .Values.pool.spec.queues) }}
{{- end -}}

{{/* Checks that values.schema.json can't express. Each fails with a message that names the key. */}}
{{- define "joex.check" -}}
{{- if and (has "*" .Values.watchNamespaces) (gt (len .Values.watchNamespaces) 1) -}}
{{- fail "watchNamespaces: * means all namespaces; name no other beside it" -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name: name the existing account, because serviceAccount.create is false" -}}
{{- end -}}
{{- $database := .Values.database -}}
{{- if and $database.existingSecret $database.url -}}
{{- fail "database.existingSecret, database.url: set only one of them" -}}
{{- end -}}
{{- /* Not in the schema, because its message would show the password. */ -}}
{{- if and $database.url (not (regexMatch "^postgres(ql)?://." $database.url)) -}}
{{- fail "database.url: expected postgresql://user:password@host:port/database" -}}
{{- end -}}
{{- if and (include "joex.trial" .) (or $database.existingSecret $database.url) -}}
{{- fail "postgresql.enabled: a database is set, so there is no trial PostgreSQL; leave it at auto" -}}
{{- end -}}
{{- $isSet := or (include "joex.trial" .) $database.existingSecret $database.url -}}
{{- if and .Values.pool.enabled (not $isSet) -}}
{{- fail "pool.enabled: the first pool needs a database: set database.existingSecret or database.url" -}}
{{- else if and .Values.console.enabled (not $isSet) -}}
{{- fail "console.enabled: the console needs a database: set database.existingSecret or database.url" -}}
{{- end -}}
{{- if .Values.pool.enabled -}}
{{- include "joex.checkPool" . -}}
{{- end -}}
{{- end -}}

{{- define "joex.checkPool" -}}
{{- $watched := include "joex.watched" . -}}
{{- if and $watched (not (has .Release.Namespace (splitList "," $watched))) -}}
{{- fail (printf "watchNamespaces: the first pool is in %s, which is not among them; add it, or set pool.enabled=false" .Release.Namespace) -}}
{{- end -}}
{{- $schema := (.Files.Get "files/crds/joexpools.joex.dev.yaml" | fromYaml | dig "spec" "versions" list | first).schema.openAPIV3Schema -}}
{{- $fields := omit $schema.properties.spec.properties "database" -}}
{{- range $field, $_ := .Values.pool.spec -}}
{{- if eq $field "database" -}}
{{- fail "pool.spec.database: set database.existingSecret or database.url instead" -}}
{{- else if not (hasKey $fields $field) -}}
{{- fail (printf "pool.spec.%s: a pool has no such field; it has %s" $field (keys $fields | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
