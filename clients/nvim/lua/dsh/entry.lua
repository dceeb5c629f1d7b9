--- An entry of a log as lines to read.
local text = require("dsh.text")

local M = {}

-- What every entry has; the person sees it in the tree.
local ENVELOPE = {
  id = true,
  parentId = true,
  type = true,
  timestamp = true,
  seq = true,
  time = true,
  truncated = true,
}

---@param value any
---@return string
local function plain(value)
  return type(value) == "string" and value or vim.json.encode(value)
end

--- The fields of a table, one below the other; long values stand below their name.
---@param fields table<string, any>
---@param hidden? table<string, boolean>
---@return string
local function listed(fields, hidden)
  local shown = {}
  local names = vim.tbl_keys(fields)
  table.sort(names)
  for _, name in ipairs(names) do
    if not (hidden and hidden[name]) then
      local value = plain(fields[name])
      local apart = value:find("\n") and "\n    " or " "
      table.insert(shown, ("  %s:%s%s"):format(name, apart, (value:gsub("\n", "\n    "))))
    end
  end
  return table.concat(shown, "\n")
end

---@type table<string, fun(block: table): string>
local blocks = {
  text = function(block)
    return plain(block.text)
  end,
  thinking = function(block)
    return "> " .. plain(block.thinking or block.text):gsub("\n", "\n> ")
  end,
  toolCall = function(block)
    local arguments = block.arguments
    return ("[%s]\n%s"):format(
      plain(block.name),
      type(arguments) == "table" and listed(arguments) or plain(arguments)
    )
  end,
  image = function(block)
    return ("[image %s]"):format(block.mimeType or "")
  end,
}

---@param content any
---@return string
local function written(content)
  if type(content) ~= "table" then
    return plain(content)
  end
  local parts = {}
  for _, block in ipairs(content) do
    local write = type(block) == "table" and blocks[block.type]
    table.insert(parts, write and write(block) or plain(block))
  end
  return table.concat(parts, "\n\n")
end

---@param entry table as `session/entries` gives it
---@return string
local function said(entry)
  -- pi, omp and the native format have a message in the entry, dsh has it in the data of the event.
  local message = entry.message
    or (type(entry.data) == "table" and entry.data.role and entry.data)
    or entry
  if message.command then
    return "$ " .. plain(message.command) .. "\n\n" .. plain(message.output or "")
  end
  local body = message.content or message.summary
  if body then
    local parts = { written(body), message.errorMessage and plain(message.errorMessage) or "" }
    return table.concat(
      vim.tbl_filter(function(part)
        return part ~= ""
      end, parts),
      "\n\n"
    )
  end
  return listed(entry, ENVELOPE)
end

--- All that an entry says, harmless to show.
---@param entry table
---@return string[]
function M.lines(entry)
  local lines = text.lines(said(entry))
  local cut = entry.truncated
  if cut then
    table.insert(lines, "")
    table.insert(
      lines,
      ("(%s is cut: %d bytes in all)"):format(text.line(plain(cut.field)), cut.bytes)
    )
  end
  return lines
end

return M
